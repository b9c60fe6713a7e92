"""Training on the emulator is plain PyTorch with the same global batch."""

import copy

import poptorch
import pytest
import torch

from tests.support.strict import zip_strict

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
    for bx, by in zip_strict(x.chunk(updates), y.chunk(updates)):
        optimizer.zero_grad()
        for mx, my in zip_strict(bx.chunk(parts), by.chunk(parts)):
            _, loss = model(mx, my)
            (loss / parts if mean else loss).backward()
        optimizer.step()
    return loss.detach()


def assert_same_weights(model, other):
    for (name, a), b in zip_strict(
        model.state_dict().items(), other.state_dict().values()
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


def test_batch_norm_sees_micro_batches(make, data):
    model = make(norm=True)
    reference = copy.deepcopy(model)
    x, y = data(16)
    by_hand(reference, torch.optim.SGD(reference.parameters(), lr=0.01), x, y, 2, 2)
    poptorch.trainingModel(model, options(2, 2))(x, y)
    assert_same_weights(model, reference)


def test_replicas_have_statistics_of_their_own(make, data):
    model = make(norm=True)
    training = poptorch.trainingModel(model, options(replicas=2))
    training(*data(8))
    reference = make(norm=True)
    reference(data(8)[0][:4])  # the first replica's, which the host gets
    torch.testing.assert_close(model.norm.running_mean, reference.norm.running_mean)


class Remembers(torch.nn.Module):
    def __init__(self, cut):
        super().__init__()
        self.inner, self.cut = torch.nn.Linear(4, 4), cut
        self.register_buffer("memory", torch.zeros(6, 4))

    def forward(self, x):
        out = self.inner(x) + self.memory.mean(0)
        self.memory[:2] = out[:2].detach() if self.cut else out[:2]
        return out, poptorch.identity_loss(out.pow(2).mean(), "mean")


def test_no_gradient_goes_back_to_the_run_before_through_a_buffer():
    model = Remembers(cut=False)
    reference = Remembers(cut=True)  # else CPU torch refuses the second update
    reference.load_state_dict(model.state_dict())
    sgd = torch.optim.SGD(reference.parameters(), lr=0.1)
    x = torch.randn(9, 4)
    for part in x.chunk(3):
        sgd.zero_grad()
        reference(part)[1].backward()
        sgd.step()
    given = torch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options(), given)
    for part in x.chunk(3):
        training(part)
    training.copyWeightsToHost()
    assert_same_weights(model, reference)


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


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("Adam", {"lr": 0.01}),
        ("AdamW", {"lr": 0.003, "weight_decay": 0.01}),
        ("SGD", {"lr": 0.01, "momentum": 0.9, "weight_decay": 3e-4}),
        ("SGD", {"lr": 0.01, "momentum": 0.9, "dampening": 0.1, "loss_scaling": 3.0}),
        ("RMSprop", {"lr": 0.001, "weight_decay": 0.01}),
        ("LAMB", {"lr": 0.01, "weight_decay": 0.01}),
    ],
)
def test_optimizer_state_resumes_exactly(make, data, kind, settings):
    """None of these rates is a float32: the device has all of them rounded."""
    x, y = data(4)
    whole, first, second = make(), make(), make()

    def wrapped(model):
        optimizer = getattr(poptorch.optim, kind)(model.parameters(), **settings)
        return optimizer, poptorch.trainingModel(model, optimizer=optimizer)

    _, training = wrapped(whole)
    for _ in range(4):
        training(x, y)
    optimizer, training = wrapped(first)
    for _ in range(2):
        training(x, y)
    state = optimizer.state_dict()
    assert "Accl1___first.weight" in state["ipu_state"]
    second.load_state_dict(first.state_dict())
    optimizer, training = wrapped(second)
    optimizer.load_state_dict(state)
    for _ in range(2):
        training(x, y)
    for a, b in zip_strict(second.parameters(), whole.parameters()):
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
        asked = poptorch.optim.Adam(model.parameters(), amsgrad=True)
        poptorch.trainingModel(model, optimizer=asked)
    with pytest.raises(AssertionError, match="accum_type"):
        poptorch.optim.SGD(model.parameters(), lr=0.1, accum_type=torch.int32)


def test_half_accumulators_choose_a_running_mean(make, data):
    def trained(**settings):
        model = make()
        optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1, **settings)
        training = poptorch.trainingModel(model, optimizer=optimizer)
        training.compile(*data(4))
        section = training.options.Training
        return section.meanAccumulationAndReplicationReductionStrategy, training

    kinds = poptorch.MeanReductionStrategy
    assert trained(accum_type=torch.half)[0] == kinds.Running
    chosen, training = trained()
    assert chosen == kinds.Post
    optimizer = training._optimizer
    optimizer.accum_type = torch.half
    with pytest.raises(ValueError, match="already compiled"):
        training.setOptimizer(optimizer)


def scaled(model, x, updates, **settings):
    """The loss scale of each update, and the optimizer."""
    opts = poptorch.Options()
    opts.Training.setAutomaticLossScaling(True)
    opts.anchorTensor("scale", "finalLossScale")
    optimizer = poptorch.optim.SGD(model.parameters(), **settings)
    training = poptorch.trainingModel(model, opts, optimizer)
    scales = []
    for _ in range(updates):
        training(x)
        scales.append(training.getAnchoredTensor("scale").item())
    return scales, optimizer


def test_the_loss_scale_grows_until_gradients_are_large():
    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3).half())

        def forward(self, x):
            return poptorch.identity_loss(x * self.weight, "sum")

    x = torch.ones(3).half()
    scales, optimizer = scaled(Half(), x, 14, lr=0.0, loss_scaling=4.0)
    assert scales[:3] == [4, 8, 16]
    # the gradient is the scale itself: doubled below an eighth of the largest half
    assert scales[-4:] == [4096, 8192, 4096, 8192]
    factor = optimizer.state_dict()["ipu_state"]["lossScaleUpdateFactor"]
    assert factor * 4.0 == 4096


@pytest.mark.parametrize(
    ("inner", "given", "last"),
    [
        # no gradients: PopART doubles up to 2^15, beyond which half has no scale
        (0.0, 1.0, 2.0**15),
        (0.0, 8.0, 2.0**15),
        # the weights' gradients are 0, that between them is 3000 times the scale
        (1000.0, 1.0, 4.0),
    ],
)
def test_the_loss_scale_stays_where_half_can_hold_it(inner, given, last):
    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Parameter(torch.ones(3, 3).half())
            self.last = torch.nn.Parameter(torch.ones(3, 3).half())

        def forward(self, x):
            x = (x @ self.first) @ self.last
            return poptorch.identity_loss(x * inner, "sum")

    model, x = Half(), torch.zeros(2, 3).half()
    scales, _ = scaled(model, x, 24, lr=0.1, loss_scaling=given)
    assert max(scales[-6:]) == last
    assert torch.equal(model.first, torch.ones(3, 3).half())


def test_loaded_hyperparameters_are_used_until_others_are_set(make, data):
    x, y = data(4)
    model = make()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, optimizer=optimizer)
    training.compile(x, y)
    state = optimizer.state_dict()
    still = "scaledLearningRate0___specific___first.weight"
    state["ipu_param"] = {still: torch.tensor(0.0)}
    optimizer.load_state_dict(state)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    training(x, y)
    after = model.state_dict()
    assert torch.equal(after["first.weight"], before["first.weight"])
    assert not torch.equal(after["last.weight"], before["last.weight"])
    assert optimizer.state_dict()["ipu_param"][still] == 0
    optimizer.param_groups[0]["lr"] = 0.2
    training.setOptimizer(optimizer)
    training(x, y)
    assert not torch.equal(model.state_dict()["first.weight"], before["first.weight"])


def test_what_only_the_device_has_is_set_on_the_optimizer(make, data):
    model = make()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, loss_scaling=2.0)
    training = poptorch.trainingModel(model, optimizer=optimizer)
    training(*data(4))
    optimizer.loss_scaling = 8.0
    training.setOptimizer(optimizer)
    assert optimizer.state_dict()["ipu_param"]["lossScaling_FLOAT"] == 8


@pytest.mark.parametrize("kind", ["SGD", "RMSprop"])
def test_a_momentum_may_begin_later(kind, make, data):
    def trained(momenta):
        model = make()
        build = getattr(poptorch.optim, kind)
        optimizer = build(model.parameters(), lr=0.01, momentum=momenta[0])
        training = poptorch.trainingModel(model, optimizer=optimizer)
        for momentum in momenta:
            optimizer.param_groups[0]["momentum"] = momentum
            training.setOptimizer(optimizer)
            training(*data(4))
        assert "Accl1___first.weight" in optimizer.state_dict()["ipu_state"]
        return model

    before, later = trained([0.0, 0.0, 0.0]), trained([0.0, 0.5, 0.5])
    assert not torch.equal(before.first.weight, later.first.weight)


def test_code_of_subclassed_optimizers_does_not_run(make, caplog):
    class Mine(torch.optim.SGD):
        pass

    model = make()
    poptorch.trainingModel(model, optimizer=Mine(model.parameters(), lr=0.1))
    assert "does not run Python optimizer code directly" in caplog.text


def test_later_attributes_are_ignored_with_one_warning(make, data, caplog):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.known = 1
    training = poptorch.trainingModel(model, optimizer=optimizer)
    training(*data(4))
    optimizer.tempo = 2
    optimizer.param_groups[0]["initial_lr"] = 0.1
    for _ in range(2):
        training.setOptimizer(optimizer)
    assert caplog.text.count("unexpected optimizer attribute") == 1
    assert caplog.text.count("unexpected group 0 attribute") == 1
    assert "known" not in caplog.text


class Slices(torch.nn.Module):
    """Each group of replicas has its own columns of one matrix."""

    def __init__(self, columns):
        super().__init__()
        self.weight = torch.nn.Parameter(columns)

    def forward(self, x):
        return poptorch.identity_loss((x @ self.weight) ** 2, "mean")


@pytest.mark.parametrize("kind", ["Consecutive", "Orthogonal"])
def test_groups_of_replicas_train_parts_of_a_weight(kind, make, data):
    whole = torch.randn(3, 8, generator=torch.Generator().manual_seed(3))
    x, _ = data(4)
    reference = torch.nn.Parameter(whole.clone())
    sgd = torch.optim.SGD([reference], lr=0.1, momentum=0.9)
    model = Slices(torch.stack(whole.chunk(4, dim=1)))
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    groups = poptorch.CommGroupType[kind]
    inputs = {"Consecutive": "Orthogonal", "Orthogonal": "Consecutive"}[kind]
    opts = options(replicas=8)
    opts.inputReplicaGrouping(4, poptorch.CommGroupType[inputs])
    training = poptorch.trainingModel(model, opts, optimizer)
    with pytest.raises(poptorch.Error, match="not a CommGroupType"):
        training.weight.replicaGrouping("all", 2, None)
    retrieval = poptorch.VariableRetrievalMode.OnePerGroup
    training.weight.replicaGrouping(groups, 2, retrieval)
    for _ in range(3):
        sgd.zero_grad()
        ((x @ reference) ** 2).mean().backward()
        sgd.step()
        training(x)
    trained = torch.cat(list(model.weight.detach()), dim=1)
    torch.testing.assert_close(trained, reference.detach())
    assert optimizer.state_dict()["ipu_state"]["Accl1___weight"].shape == (4, 3, 2)
    with pytest.raises(poptorch.Error, match="before the model is compiled"):
        training.weight.replicaGrouping(groups, 2, retrieval)
    wrong = poptorch.trainingModel(Slices(torch.ones(3, 3, 2)), options(replicas=8))
    wrong.weight.replicaGrouping(groups, 2, retrieval)
    with pytest.raises(poptorch.Error, match="first dimension of 4"):
        wrong(x[:8].repeat(2, 1))


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def test_an_autograd_function_is_refused_and_works_afterwards(make, data):
    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = make()

        def forward(self, x, y):
            return self.inner(_Doubled.apply(x), y)

    x, y = data(4)
    model = Wrapped()
    training = poptorch.trainingModel(model, options())
    with pytest.raises(poptorch.Error, match=r"_Doubled is a torch.autograd.Function"):
        training(x, y)
    assert torch.equal(_Doubled.apply(x), 2 * x)


def _adds(out):
    out[:, 1:] += out[:, :3]


def _multiplies(out):
    out[:, 1:].mul_(2)


def _adds_to_a_view_of_a_view(out):
    parts = out.view(-1, 2, 2).transpose(1, 2)
    parts[:, 1] += parts[:, 0]


@pytest.mark.parametrize("change", [_adds, _multiplies, _adds_to_a_view_of_a_view])
def test_a_part_of_a_result_changed_in_place_has_its_gradient(change):
    class Changes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x):
            out = self.layer(x)
            change(out)
            return poptorch.identity_loss((out**2).sum(), "none")

    model, x = Changes(), torch.ones(2, 4)
    expected = copy.deepcopy(model)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    expected(x).backward()
    optimizer.step()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    poptorch.trainingModel(model, optimizer=optimizer)(x)
    torch.testing.assert_close(model.layer.weight, expected.layer.weight)
