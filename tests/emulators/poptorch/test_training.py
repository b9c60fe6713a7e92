"""Training on the emulator is plain PyTorch with the same global batch."""

from __future__ import annotations

import copy

import poptorch
import pytest
import torch

OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5}),
    "pop-sgd": (poptorch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "pop-adam": (poptorch.optim.Adam, {"lr": 0.01}),
    "pop-adamw": (poptorch.optim.AdamW, {"lr": 0.01, "bias_correction": False}),
    "pop-rmsprop": (poptorch.optim.RMSprop, {"lr": 0.01}),
    "pop-lamb": (poptorch.optim.LAMB, {"lr": 0.01}),
}


def options(iterations=1, steps=1, replicas=1, reduction=None):
    opts = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    opts.Training.gradientAccumulation(steps)
    if reduction is not None:
        opts.Training.accumulationAndReplicationReductionType(reduction)
    return opts


def by_hand(model, optimizer, x, y, updates, parts, mean=True):
    """The loop that one call stands for; returns the last loss."""
    for bx, by in zip(x.chunk(updates), y.chunk(updates), strict=True):
        optimizer.zero_grad()
        for mx, my in zip(bx.chunk(parts), by.chunk(parts), strict=True):
            _, loss = model(mx, my)
            (loss / parts if mean else loss).backward()
        optimizer.step()
    return loss.detach()


def assert_same_weights(model, other):
    for (name, a), b in zip(
        model.state_dict().items(), other.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_accumulated_updates_equal_a_loop_written_by_hand(kind, make, data):
    model = make()
    reference = copy.deepcopy(model)
    build, settings = OPTIMIZERS[kind]
    x, y = data(24)
    by_hand(reference, build(reference.parameters(), **settings), x, y, 3, 4)
    training = poptorch.trainingModel(
        model, options(3, 4), build(model.parameters(), **settings)
    )
    training(x, y)
    assert_same_weights(model, reference)


@pytest.mark.parametrize("reduction", poptorch.ReductionType.__members__)
def test_gradients_are_summed_or_averaged(reduction, make, data):
    if reduction == "NoReduction":
        with pytest.raises(ValueError, match="Sum"):
            options(reduction=poptorch.ReductionType.NoReduction)
        return
    model = make()
    reference = copy.deepcopy(model)
    x, y = data(8)
    sgd = torch.optim.SGD(reference.parameters(), lr=0.1)
    by_hand(reference, sgd, x, y, 1, 4, mean=reduction == "Mean")
    opts = options(1, 4, reduction=poptorch.ReductionType[reduction])
    training = poptorch.trainingModel(
        model, opts, torch.optim.SGD(model.parameters(), lr=0.1)
    )
    training(x, y)
    assert_same_weights(model, reference)


@pytest.mark.parametrize("replicas", [2, 4, 8])
def test_replicas_give_the_weights_of_accumulation(replicas, make, data):
    x, y = data(16)
    one, many = make(), make()
    poptorch.trainingModel(one, options(2, 8))(x, y)
    losses = poptorch.trainingModel(many, options(2, 8 // replicas, replicas))(x, y)[1]
    assert losses.shape == (replicas,)
    assert_same_weights(many, one)


def test_device_iterations_equal_single_calls(make, data):
    x, y = data(12)
    one, many = make(), make()
    single = poptorch.trainingModel(one, options(1, 2))
    for part in range(3):
        single(x[part * 4 : part * 4 + 4], y[part * 4 : part * 4 + 4])
    poptorch.trainingModel(many, options(3, 2))(x, y)
    assert_same_weights(many, one)


def test_the_norm_is_clipped_over_all_weights(make, data):
    model = make()
    reference = copy.deepcopy(model)
    x, y = data(4)
    _, loss = reference(x, y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.01)
    torch.optim.SGD(reference.parameters(), lr=1.0).step()
    sgd = poptorch.optim.SGD(model.parameters(), lr=1.0, max_grad_norm=0.01)
    poptorch.trainingModel(model, optimizer=sgd)(x, y)
    assert_same_weights(model, reference)


def test_batch_norm_sees_micro_batches(make, data):
    model = make(norm=True)
    reference = copy.deepcopy(model)
    x, y = data(16)
    by_hand(reference, torch.optim.SGD(reference.parameters(), lr=0.01), x, y, 2, 2)
    poptorch.trainingModel(model, options(2, 2))(x, y)
    assert_same_weights(model, reference)


def test_frozen_and_foreign_parameters_are_not_updated(make, data):
    model = make()
    model.first.weight.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    sgd = torch.optim.SGD(model.last.parameters(), lr=0.1)
    poptorch.trainingModel(model, optimizer=sgd)(*data(4))
    after = model.state_dict()
    assert torch.equal(before["first.weight"], after["first.weight"])
    assert torch.equal(before["first.bias"], after["first.bias"])
    assert not torch.equal(before["last.weight"], after["last.weight"])


def test_half_activations_meet_float_weights():
    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)

        def forward(self, x):
            return self.linear(x)

    model = Half()
    out = poptorch.inferenceModel(model)(torch.ones(2, 3, dtype=torch.half))
    assert out.dtype == torch.half
    out = poptorch.inferenceModel(model.half())(torch.ones(2, 3))
    assert out.dtype == torch.float32


def test_a_schedule_reaches_the_device_with_set_optimizer(make, data):
    model = make()
    x, y = data(4)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, optimizer=sgd)
    training(x, y)
    sgd.param_groups[0]["lr"] = 0.0
    before = copy.deepcopy(model.state_dict())
    training(x, y)
    trained = copy.deepcopy(model.state_dict())
    assert not torch.equal(before["last.weight"], trained["last.weight"])
    training.setOptimizer(sgd)
    training(x, y)
    assert torch.equal(trained["last.weight"], model.state_dict()["last.weight"])


def test_equal_hyperparameters_are_not_sent_again(make, data, emulator):
    model = make()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, optimizer=sgd)
    training(*data(4))
    emulator.counts.clear()
    training.setOptimizer(sgd)
    assert emulator.counts["optimizer_to_device"] == 0
    sgd.param_groups[0]["lr"] = 0.2
    training.setOptimizer(sgd)
    assert emulator.counts["optimizer_to_device"] == 1


def test_a_constant_cannot_change_after_compilation(make, data):
    model = make()
    sgd = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sgd.variable_attrs.markAsConstant("momentum")
    training = poptorch.trainingModel(model, optimizer=sgd)
    training(*data(4))
    sgd.param_groups[0]["momentum"] = 0.5
    with pytest.raises(poptorch.Error, match="momentum of group 0 is a constant"):
        training.setOptimizer(sgd)
    with pytest.raises(AssertionError, match="Unknown attribute speed"):
        sgd.variable_attrs.markAsVariable("speed")


def test_optimizer_state_resumes_exactly(make, data):
    x, y = data(4)
    whole, first, second = make(), make(), make()

    def wrapped(model):
        adam = poptorch.optim.Adam(model.parameters(), lr=0.01)
        return adam, poptorch.trainingModel(model, optimizer=adam)

    _, training = wrapped(whole)
    for _ in range(4):
        training(x, y)
    adam, training = wrapped(first)
    for _ in range(2):
        training(x, y)
    state = adam.state_dict()
    assert "Accl1___first.weight" in state["ipu_state"]
    second.load_state_dict(first.state_dict())
    adam, training = wrapped(second)
    adam.load_state_dict(state)
    for _ in range(2):
        training(x, y)
    for a, b in zip(second.parameters(), whole.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("state", [{}, {"state": {}, "param_groups": []}])
def test_torch_optimizer_state_is_refused(state, make):
    adam = poptorch.optim.Adam(make().parameters(), lr=0.01)
    with pytest.raises(RuntimeError, match="Only IPU optimizer states"):
        adam.load_state_dict(state)


def test_unsupported_optimizers_are_refused(make):
    model = make()
    with pytest.raises(AssertionError, match="Unsupported optimizer type Adagrad"):
        poptorch.trainingModel(model, optimizer=torch.optim.Adagrad(model.parameters()))
    with pytest.raises(ValueError, match="amsgrad"):
        poptorch.optim.Adam(model.parameters(), amsgrad=True)
    with pytest.raises(AssertionError, match="accum_type"):
        poptorch.optim.SGD(model.parameters(), lr=0.1, accum_type=torch.int32)
