"""Whatever the device: each method of `DeviceAdapter` does what its docstring says."""

from __future__ import annotations

import gc
import math
import weakref
from typing import Any

import pytest
import torch

from devrun.checkpoint import encode_tree
from devrun.devices.base import DataShare, DeviceAdapter, DeviceInfo
from devrun.devices.resolve import resolve_device
from devrun.errors import CheckpointError, UnsupportedFeatureError
from devrun.probes.probe import Probe
from devrun.step import PRECISIONS, Capability, UpdatePolicy
from devrun.testing.harness import (
    AdapterTests,
    Session,
    batches,
    by_hand,
    counting,
    dropping,
    loader,
    net,
)
from devrun.torch_features import lacks

HOST = torch.device("cpu")


def of_process() -> tuple[Any, ...]:
    """What an adapter may set, and has to put back."""
    return (
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_grad_enabled(),
    )


class ProtocolTests(AdapterTests):
    """Where the work is done, and what else the runner asks of an adapter."""

    def test_an_update_is_done_on_the_device(self, adapter: DeviceAdapter) -> None:
        session, (batch,), seen = Session(adapter), batches(1), []
        host = [param.detach() for param in session.module.parameters()]
        before = [weight.clone() for weight in host]
        for layer in session.module.modules():
            layer.register_forward_hook(lambda _, i, out: seen.extend([*i, out]))
        seen.append(session.step(batch).loss)
        if Capability.HOST_WEIGHTS not in adapter.capabilities:
            # the device has weights of its own: the host's are old until it asks
            assert all(map(torch.equal, before, host))
            adapter.sync_to_host(session.model)
            assert not any(map(torch.equal, before, host))
            return
        place = getattr(adapter, "device", HOST).type
        on_host = self.torch_device or getattr(adapter, "host_shared", False)
        assert place != HOST.type or on_host, "its claim() gave the host"
        for param in session.module.parameters():
            seen += [param, *session.optimizer.state[param].values()]
        assert {tensor.device.type for tensor in seen} == {self.torch_device or place}

    def test_it_says_what_is_here(self, adapter: DeviceAdapter) -> None:
        reason, devices = adapter.unavailable_reason(), adapter.list_devices()
        assert (reason is None) == bool(devices)
        assert reason is None or (adapter.emulated and "\n" not in reason)
        for each in devices:
            assert isinstance(each, DeviceInfo) and each.name
            assert each.memory_bytes is None or each.memory_bytes > 0
            known = {*PRECISIONS, "tf32"}  # which is fp32's, not one of its own
            assert each.dtypes and {*each.dtypes, *each.slow_dtypes} <= known
        if not lacks("2.4"):  # before, nothing asks for probes
            probes = adapter.probes()
            assert all(issubclass(each, Probe) for each in probes.of_config)
            torch.device(probes.torch_device)  # which torch knows
        assert adapter.data_share == DataShare(0, 1)  # of one process

    def test_a_seed_repeats_a_run(self, adapter: DeviceAdapter) -> None:
        def losses(seed: int) -> list[float]:
            module = dropping()  # which seeds its weights
            adapter.setup(seed)
            return Session(adapter, module=module).train(batches(3))

        first = losses(3)
        assert losses(3) == first != losses(4)
        host = torch.get_rng_state()
        adapter.setup(None)  # which leaves the streams alone
        assert torch.equal(torch.get_rng_state(), host)

    def test_its_random_stream_goes_back_to_where_it_was(
        self, adapter: DeviceAdapter
    ) -> None:
        session, (batch,) = Session(adapter, module=dropping()), batches(1)
        session.set(lr=0.0)
        session.train([batch])
        host, state = torch.get_rng_state(), adapter.rng_state()
        first = session.train([batch] * 3)
        torch.set_rng_state(host)
        encode_tree(state)  # a checkpoint can keep it
        adapter.set_rng_state(state)
        assert session.train([batch] * 3) == first and len(set(first)) == 3

    def test_a_precision_is_taken_or_refused(self, adapter: DeviceAdapter) -> None:
        data = batches(4)
        losses, _ = by_hand(data)
        listed = [{*i.dtypes, *i.slow_dtypes} for i in adapter.list_devices()]
        try:
            session = Session(adapter, UpdatePolicy(precision="bf16"))
        except UnsupportedFeatureError as refusal:
            assert not any("bf16" in dtypes for dtypes in listed), refusal
            return
        rounded = session.train(data)
        assert rounded != pytest.approx(losses, rel=1e-6)  # bf16 keeps three digits
        assert rounded == pytest.approx(losses, rel=0.03)
        weights, module = session.host_weights(), net()
        assert {value.dtype for value in weights.values()} == {torch.float32}
        module.load_state_dict(weights)
        with torch.no_grad():
            exact = module(data[0][0])
        found = session.evaluate(data[0])["predictions"].cpu().float()
        assert not torch.isclose(found, exact).all()  # evaluations round too

    def test_state_goes_to_another_model(self, adapter: DeviceAdapter) -> None:
        data = batches(8)
        first = Session(adapter, module=counting())
        first.train(data[:4])
        adapter.sync_to_host(first.model)
        weights = {k: v.cpu() for k, v in adapter.model_state(first.model).items()}
        self.assert_same_weights(weights, by_hand(data[:4], module=counting())[1])
        moments = adapter.optimizer_state(first.model, first.optimizer)
        encoded = encode_tree(moments)  # a checkpoint can keep it
        assert len(encoded.tensors) == len([*first.module.parameters()])
        second = Session(adapter, module=counting())
        second.train(data[:1])
        adapter.load_model_state(second.model, weights, "a test")
        load = adapter.load_optimizer_state(second.model, second.optimizer, moments)
        now = encode_tree(adapter.optimizer_state(second.model, second.optimizer))
        pairs = zip(now.tensors.values(), encoded.tensors.values())
        assert not any(torch.equal(*pair) for pair in pairs)  # not yet
        load()
        adapter.sync_to_device(second.model)
        second.train(data[4:])
        whole = by_hand(data, module=counting())[1]
        self.assert_same_weights(second.host_weights(), whole)

    def test_state_that_does_not_fit_is_refused(self, adapter: DeviceAdapter) -> None:
        session = Session(adapter)
        session.train(batches(1))
        weights = session.host_weights()
        moments = adapter.optimizer_state(session.model, session.optimizer)
        moments["state"]["another"] = moments["state"].pop("0.bias")
        with pytest.raises(CheckpointError, match="another"):
            adapter.load_optimizer_state(session.model, session.optimizer, moments)
        after = session.host_weights()
        assert all(torch.equal(weights[name], after[name]) for name in weights)
        wrong = {**weights, "3.bias": torch.zeros(9)}
        with pytest.raises(CheckpointError, match="a test"):
            adapter.load_model_state(session.model, wrong, "a test")

    def test_its_numbers_and_its_state_tell_of_updates_left_out(
        self, adapter: DeviceAdapter
    ) -> None:
        watched = {Capability.FINITE_CHECKS, Capability.GRAD_ACCESS}
        skips = watched <= adapter.capabilities
        policy = UpdatePolicy(nonfinite="skip") if skips else None
        session, (x, y) = Session(adapter, policy), batches(1)[0]
        session.train([(x, y), (x * math.nan if skips else x, y), (x, y)])
        adapter.check_finite(session.model)
        stats, state = adapter.stats(), adapter.state_dict()
        assert stats.get("skipped_updates", 0) == skips
        assert all(math.isfinite(v) and v >= 0 for v in stats.values())
        assert stats.get("peak_mib", 1) > 0
        encode_tree(state)  # a checkpoint can keep it
        following = resolve_device(self.device)
        following.setup(0)
        following.load_state_dict(state)
        Session(following, policy)
        assert following.state_dict() == state
        assert following.stats().get("skipped_updates", 0) == skips
        following.teardown()

    def test_the_order_of_the_data_follows_its_seed(
        self, adapter: DeviceAdapter
    ) -> None:
        Session(adapter)

        def order(seed: int) -> list[int]:
            data = loader(24, 4, shuffle=True)
            prepared = adapter.prepare_dataloader(data, training=True, seed=seed)
            assert adapter.prepare_dataloader(prepared, training=True) is prepared
            return [int(label) for _, labels in prepared for label in labels]

        assert order(7) == order(7) != order(8)

    def test_teardown_leaves_the_process_as_it_was(self) -> None:
        gc.freeze()  # what is there already need not be looked through
        before = of_process()
        adapter = resolve_device(self.device)
        adapter.teardown()  # before any setup
        adapter.setup(None)
        session = Session(adapter)
        session.train(batches(1))
        held = weakref.ref(session.module), weakref.ref(session.optimizer)
        adapter.teardown()
        adapter.teardown()
        del session
        gc.collect()
        gc.unfreeze()
        assert [each() for each in held] == [None, None]
        assert of_process() == before
