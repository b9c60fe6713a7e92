"""Whatever the device: one update is the update that a plain loop would do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from devrun.errors import ConfigError, DivergedError, UnsupportedFeatureError
from devrun.step import Capability, MicroBatches, StepOutput, UpdatePolicy
from tests.contract.harness import (
    TOLERANCE,
    Session,
    assert_same_weights,
    batches,
    by_hand,
)

NORM = {"max_norm": 0.05, "norm_type": 2}
VALUE = {"clip_value": 0.01}


def test_losses_and_weights_are_those_of_a_plain_loop(adapter):
    data = batches(10)
    losses, model, _ = by_hand(data)
    session = Session(adapter)
    assert session.train(data) == pytest.approx(losses, rel=1e-4)
    assert_same_weights(session.host_state()[0], model)


@pytest.mark.parametrize("clip", [NORM, VALUE], ids=["norm", "value"])
def test_clipping_is_that_of_a_plain_loop(adapter, clip):
    data = batches(4)
    losses, model, _ = by_hand(data, clip)
    if clip is VALUE and adapter.name == "ipu":
        with pytest.raises(UnsupportedFeatureError, match="max_norm"):
            Session(adapter, UpdatePolicy(grad_clip=clip))
        return
    session = Session(adapter, UpdatePolicy(grad_clip=clip))
    assert session.train(data) == pytest.approx(losses, rel=1e-4)
    assert_same_weights(session.host_state()[0], model)


def test_the_norm_before_clipping_is_reported(adapter):
    if adapter.name == "ipu":
        pytest.skip("an IPU clips inside the compiled graph and tells nothing of it")
    data = batches(1)
    _, model, _ = by_hand(data)  # leaves the gradients of its only update
    norms = [param.grad.norm() for param in model.parameters()]
    session = Session(adapter, UpdatePolicy(grad_clip=NORM))
    outputs = session.step(data[0])
    expected = torch.stack(norms).norm().item()
    assert float(outputs.log_vars["grad_norm"]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("sizes", [(4, 4, 4), (4, 4, 1)], ids=["equal", "short-last"])
def test_accumulation_equals_the_big_batch(adapter, sizes):
    whole = batches(3, size=sum(sizes))
    losses, model, _ = by_hand(whole)
    session = Session(adapter, UpdatePolicy(accumulate=3))
    parts = [
        MicroBatches(zip(x.split(list(sizes)), y.split(list(sizes)), strict=True))
        for x, y in whole
    ]
    if len(set(sizes)) > 1 and Capability.DYNAMIC_SHAPES not in adapter.capabilities:
        with pytest.raises(ConfigError, match="shapes"):
            session.step(parts[0])
        return
    outputs = [session.step(part) for part in parts]
    assert [float(out["loss"]) for out in outputs] == pytest.approx(losses, rel=1e-4)
    assert [out.num_samples for out in outputs] == [sum(sizes)] * 3
    assert_same_weights(session.host_state()[0], model)


def test_outputs_are_detached_and_complete(adapter):
    session = Session(adapter)
    for batch in batches(3):
        outputs = session.step(batch)
        assert isinstance(outputs, StepOutput)
        assert outputs.num_samples == 6
        assert not outputs.loss.requires_grad
        assert float(outputs.log_vars["loss"]) == pytest.approx(float(outputs.loss))


def test_evaluation_changes_nothing_and_gives_predictions(adapter):
    data = batches(2)
    session = Session(adapter)
    session.train(data[:1])
    before, _ = session.host_state()
    loader = adapter.prepare_dataloader(data[1:], training=False)
    outputs = adapter.eval_step(session.model, next(iter(loader)))
    assert outputs["predictions"].shape == (6, 4)
    assert not outputs["predictions"].requires_grad
    assert outputs["targets"].tolist() == data[1][1].tolist()
    after, _ = session.host_state()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_new_learning_rate_takes_effect(adapter):
    data = batches(2)
    session = Session(adapter)
    session.train(data[:1])
    before, _ = session.host_state()
    before = {name: value.clone() for name, value in before.items()}
    for group in session.optimizer.param_groups:
        group["lr"] = 0.0
    session.train(data[1:])
    after, _ = session.host_state()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_parameter_groups_keep_their_order_and_values(adapter):
    session = Session(adapter)
    now = session.optimizer.param_groups
    assert len(now) == len(session.groups)
    for group, was in zip(now, session.groups, strict=True):
        for key in was.keys() - {"params"}:
            assert group[key] == was[key]
    names = dict(adapter.unwrap_model(session.model).named_parameters())
    assert [id(p) for p in now[0]["params"]] == [id(p) for p in names.values()]


def test_gradients_are_complete_and_unchanged_weights_at_on_grads(adapter):
    if Capability.GRAD_ACCESS not in adapter.capabilities:
        with pytest.raises(UnsupportedFeatureError):
            Session(adapter).train(batches(1), on_grads=lambda: None)
        return
    session = Session(adapter, UpdatePolicy(accumulate=2))
    params = list(session.module.parameters())
    seen = []

    def look() -> None:
        seen.append(
            ([p.grad.clone() for p in params], [p.detach().clone() for p in params])
        )

    x, y = batches(1, size=8)[0]
    before = [p.detach().clone() for p in params]
    session.step(MicroBatches([(x[:4], y[:4]), (x[4:], y[4:])]), on_grads=look)
    _, plain, _ = by_hand([(x, y)])
    ((grads, weights),) = seen
    for grad, theirs in zip(grads, plain.parameters(), strict=True):
        torch.testing.assert_close(grad.cpu(), theirs.grad, **TOLERANCE)
    for now, was in zip(weights, before, strict=True):
        assert torch.equal(now, was)


def test_a_change_of_gradients_in_on_grads_is_used(adapter):
    if Capability.GRAD_ACCESS not in adapter.capabilities:
        pytest.skip("the device gives no gradients away")
    session = Session(adapter)
    before = {k: v.clone() for k, v in session.host_state()[0].items()}

    def zero() -> None:
        for param in session.module.parameters():
            param.grad.zero_()

    session.train(batches(2), on_grads=zero)
    after, _ = session.host_state()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_nan_is_found_before_a_save_at_the_latest(adapter):
    if adapter.name == "mirror":
        pytest.skip("this plug-in does not watch losses")
    session = Session(adapter)
    x, y = batches(1)[0]
    session.train([(x, y)])
    with pytest.raises(DivergedError, match="nan"):
        session.train([(x * math.nan, y)])
        adapter.check_finite(session.model)


@pytest.mark.parametrize(
    "policy",
    [
        UpdatePolicy(precision="int3"),
        UpdatePolicy(options={"no_such_option": "half"}),
    ],
    ids=["precision", "device-option"],
)
def test_what_the_device_cannot_do_is_refused_before_the_first_step(adapter, policy):
    with pytest.raises((ConfigError, UnsupportedFeatureError)) as refusal:
        Session(adapter, policy)
    assert "\n" not in str(refusal.value)


def test_the_users_module_comes_back_however_it_is_wrapped(adapter):
    session = Session(adapter)
    assert adapter.unwrap_model(session.model) is session.module
    assert isinstance(session.module, nn.Sequential)
