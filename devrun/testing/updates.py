"""Whatever the device: one update is the update that a plain loop would do."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from devrun.devices.base import DeviceAdapter
from devrun.devices.resolve import resolve_device
from devrun.errors import ConfigError, DivergedError, UnsupportedFeatureError
from devrun.step import Capability, MicroBatches, StepOutput, UpdatePolicy
from devrun.testing.harness import (
    AdapterTests,
    Session,
    batches,
    by_hand,
    dropping,
    gradients,
    groups_of,
    loader,
)

NORM = {"max_norm": 0.05, "norm_type": 2}
VALUE = {"clip_value": 0.01}


class UpdateTests(AdapterTests):
    """One update, and one evaluation step, against a plain loop on the host."""

    def test_losses_and_weights_are_those_of_a_plain_loop(
        self, adapter: DeviceAdapter
    ) -> None:
        data = batches(10)
        losses, model = by_hand(data)
        session, found, random = Session(adapter), [], torch.get_rng_state()
        for batch in data:
            found += session.train([batch])
            adapter.synchronize()
            adapter.empty_cache()  # neither of which changes anything
        assert torch.equal(torch.get_rng_state(), random)
        assert found == pytest.approx(losses, rel=self.rtol)
        self.assert_same_weights(session.host_weights(), model)

    @pytest.mark.parametrize("clip", [NORM, VALUE], ids=["norm", "value"])
    def test_clipping_is_that_of_a_plain_loop(
        self, adapter: DeviceAdapter, clip: dict[str, Any]
    ) -> None:
        data = batches(4)
        losses, model = by_hand(data, clip)
        if clip is VALUE and Capability.CLIP_VALUE not in adapter.capabilities:
            with pytest.raises(UnsupportedFeatureError, match="clip_value"):
                Session(adapter, UpdatePolicy(grad_clip=clip))
            return
        session = Session(adapter, UpdatePolicy(grad_clip=clip))
        assert session.train(data) == pytest.approx(losses, rel=self.rtol)
        self.assert_same_weights(session.host_weights(), model)

    def test_outputs_are_detached_and_complete(self, adapter: DeviceAdapter) -> None:
        data = batches(1)
        _, model = by_hand(data)  # leaves the gradients of its only update
        norms = [grad.norm() for grad in gradients(model)]
        session = Session(adapter, UpdatePolicy(grad_clip=NORM))
        outputs = session.step(data[0])
        assert isinstance(outputs, StepOutput)
        assert outputs.num_samples == 6
        assert not outputs.loss.requires_grad
        assert float(outputs.log_vars["loss"]) == pytest.approx(float(outputs.loss))
        if Capability.GRAD_NORM not in adapter.capabilities:
            assert "grad_norm" not in outputs.log_vars
            return
        expected = torch.stack(norms).norm().item()
        assert float(outputs.log_vars["grad_norm"]) == pytest.approx(
            expected, rel=self.rtol
        )

    @pytest.mark.parametrize(
        "sizes", [(4, 4, 4), (4, 4, 1)], ids=["equal", "short-last"]
    )
    def test_accumulation_equals_the_big_batch(
        self, adapter: DeviceAdapter, sizes: tuple[int, ...]
    ) -> None:
        whole = batches(3, size=sum(sizes))
        losses, model = by_hand(whole)
        session = Session(adapter, UpdatePolicy(accumulate=3))
        parts = [
            MicroBatches(zip(x.split(list(sizes)), y.split(list(sizes))))
            for x, y in whole
        ]
        if (
            len(set(sizes)) > 1
            and Capability.DYNAMIC_SHAPES not in adapter.capabilities
        ):
            with pytest.raises(ConfigError, match="shapes"):
                session.step(parts[0])
            return
        outputs = [session.step(part) for part in parts]
        assert [float(out["loss"]) for out in outputs] == pytest.approx(
            losses, rel=self.rtol
        )
        assert [out.num_samples for out in outputs] == [sum(sizes)] * 3
        self.assert_same_weights(session.host_weights(), model)

    def test_evaluation_changes_nothing_and_gives_predictions(
        self, adapter: DeviceAdapter
    ) -> None:
        (inputs, labels), model = batches(1)[0], dropping()
        session = Session(adapter, module=dropping())
        for each in (model, session.model):
            each.eval()  # all of each input is there
        before = session.host_weights()
        outputs = session.evaluate((inputs, labels))
        with torch.no_grad():
            self.assert_close(outputs["predictions"], model(inputs))
        assert not outputs["predictions"].requires_grad
        assert outputs["targets"].cpu().tolist() == labels.tolist()
        alone = session.evaluate(inputs, "predict")
        self.assert_close(alone["predictions"], outputs["predictions"].cpu())
        after = session.host_weights()
        assert all(torch.equal(before[name], after[name]) for name in before)

    def test_a_new_learning_rate_and_momentum_take_effect(
        self, adapter: DeviceAdapter
    ) -> None:
        data, values = batches(3), {"lr": 0.03, "momentum": 0.2}
        session = Session(adapter)
        session.train(data[:1])
        session.set(**values)
        session.train(data[1:])
        _, model = by_hand(data, then=values)
        self.assert_same_weights(session.host_weights(), model)

    def test_gradients_are_complete_and_unchanged_weights_at_on_grads(
        self, adapter: DeviceAdapter
    ) -> None:
        if Capability.GRAD_ACCESS not in adapter.capabilities:
            with pytest.raises(UnsupportedFeatureError):
                Session(adapter).train(batches(1), on_grads=lambda: None)
            return
        session = Session(adapter, UpdatePolicy(accumulate=2))
        seen = []

        def weights() -> list[Tensor]:
            return [p.detach().clone() for p in session.module.parameters()]

        def look() -> None:
            seen.append(
                ([grad.clone() for grad in gradients(session.module)], weights())
            )

        x, y = batches(1, size=8)[0]
        before = weights()
        session.step(MicroBatches([(x[:4], y[:4]), (x[4:], y[4:])]), on_grads=look)
        _, plain = by_hand([(x, y)])
        ((grads, during),) = seen
        assert len(grads) == len(gradients(plain)) and len(during) == len(before)
        for grad, theirs in zip(grads, gradients(plain)):
            self.assert_close(grad, theirs)
        for now, was in zip(during, before):
            assert torch.equal(now.cpu(), was.cpu())

    def test_what_is_not_finite_is_found_before_a_save_at_the_latest(
        self, adapter: DeviceAdapter
    ) -> None:
        session = Session(adapter)
        x, y = batches(1)[0]
        session.train([(x, y)])
        if Capability.FINITE_CHECKS not in adapter.capabilities:
            session.train([(x * math.nan, y)])
            adapter.check_finite(session.model)  # says nothing
            return
        with pytest.raises(DivergedError, match="nan"):
            session.train([(x * math.nan, y)])
            adapter.check_finite(session.model)
        session = Session(adapter)
        session.train([(x, y)])
        adapter.check_finite(session.model)
        adapter.sync_to_host(session.model)
        with torch.no_grad():
            next(session.module.parameters()).fill_(math.inf)
        adapter.sync_to_device(session.model)
        with pytest.raises(DivergedError, match="nan|inf"):
            adapter.check_finite(session.model)

    @pytest.mark.parametrize(
        "policy",
        [
            UpdatePolicy(precision="fp8"),
            UpdatePolicy(options={"no_such_option": "half"}),
        ],
        ids=["precision", "device-option"],
    )
    def test_what_the_device_cannot_do_is_refused_before_the_first_step(
        self, adapter: DeviceAdapter, policy: UpdatePolicy
    ) -> None:
        with pytest.raises((ConfigError, UnsupportedFeatureError)) as refusal:
            Session(adapter, policy)
        assert "\n" not in str(refusal.value)

    def test_the_users_module_and_groups_come_back_however_wrapped(
        self, adapter: DeviceAdapter
    ) -> None:
        session = Session(adapter)
        assert adapter.unwrap_model(session.model) is session.module
        now = session.optimizer.param_groups
        assert len(now) == len(session.groups)
        for group, was, params in zip(now, session.groups, groups_of(session.module)):
            assert [*map(id, group["params"])] == [*map(id, params)]
            assert all(group[key] == was[key] for key in was.keys() - {"params"})


# State -----------------------------------------------------------------------


class StateTests(AdapterTests):
    """State, random streams and loaders: what a resumed run relies on."""

    @pytest.mark.parametrize("accumulate", [1, 2])
    def test_an_epoch_has_every_sample_once_in_as_many_items_as_its_len(
        self, adapter: DeviceAdapter, accumulate: int
    ) -> None:
        Session(adapter, UpdatePolicy(accumulate=accumulate))
        prepared = adapter.prepare_dataloader(
            loader(22, 4, shuffle=True), training=True
        )
        items = list(prepared)
        static = Capability.DYNAMIC_SHAPES not in adapter.capabilities
        expected = 22 // (4 * accumulate) if static else -(-6 // accumulate)
        assert len(items) == len(prepared) == expected
        grouped = [i if isinstance(i, MicroBatches) else [i] for i in items]
        read = [labels.cpu() for item in grouped for _, labels in item]
        labels = torch.cat(read).tolist()
        if static:  # the last, short update is left out
            assert len(labels) == len(set(labels)) == expected * 4 * accumulate
        else:
            assert sorted(labels) == list(range(22))
        assert labels != sorted(labels)

    def test_an_evaluation_loader_keeps_batches_and_their_order(
        self, adapter: DeviceAdapter
    ) -> None:
        Session(adapter, UpdatePolicy(accumulate=4))
        prepared = adapter.prepare_dataloader(loader(10, 4), training=False)
        read = [labels.cpu().tolist() for _, labels in prepared]
        assert read == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    def test_an_unknown_option_is_refused_and_the_config_left_alone(self) -> None:
        config = self.section(no_such_option=1)
        before = copy.deepcopy(config)
        with pytest.raises(ConfigError, match="no_such_option"):
            resolve_device(config)
        assert config == before
