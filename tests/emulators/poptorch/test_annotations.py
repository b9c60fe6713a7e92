"""Blocks, stages and the checks of machine, pipeline and memory."""

import copy
import re

import poptorch
import pytest
import torch


def chain(count, ids=None):
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(count)))
    for index, layer in enumerate(model):
        ipu = index if ids is None else ids[index]
        poptorch.BeginBlock(layer, f"B{index}", ipu_id=ipu)
    return model


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return poptorch.identity_loss(self.model(x), "mean")


def test_blocks_change_nothing_on_the_host():
    model = chain(2)
    assert type(model[0]) is torch.nn.Linear
    plain = copy.deepcopy(model)
    poptorch.removeBlocks(plain)
    assert torch.equal(model(torch.ones(1, 2)), plain(torch.ones(1, 2)))
    assert "BeginBlock(user_id='B1', ipu_id=1)" in poptorch.module_repr(model)
    assert "BeginBlock" not in poptorch.module_repr(plain)
    with pytest.raises(poptorch.Error, match="already been assigned"):
        poptorch.BeginBlock(model[0])


def test_neighbours_on_one_ipu_are_one_stage():
    opts = poptorch.Options().deviceIterations(2)
    poptorch.inferenceModel(chain(4, [0, 0, 1, 1]), opts)(torch.ones(2, 2))


def test_the_stages_of_a_pipeline_ascend():
    back = chain(3, [0, 1, 0])
    opts = poptorch.Options().deviceIterations(3)
    with pytest.raises(poptorch.Error, match="'B2' goes back from IPU 1 to IPU 0"):
        poptorch.inferenceModel(back, opts)(torch.ones(3, 2))
    for strategy in (
        poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement),
        poptorch.ShardedExecution(),
    ):
        opts = opts.clone().setExecutionStrategy(strategy)
        poptorch.inferenceModel(back, opts)(torch.ones(3, 2))


def test_a_block_without_a_name_keeps_its_number():
    layer = torch.nn.Linear(2, 2)
    model = torch.nn.Sequential(poptorch.BeginBlock(layer, ipu_id=0), layer)
    poptorch.inferenceModel(model)(torch.ones(1, 2))
    first = poptorch.module_repr(model)
    assert re.search(r"user_id='\d+'", first)
    poptorch.inferenceModel(model)(torch.ones(1, 2))
    assert poptorch.module_repr(model) == first


def test_operations_need_an_active_block():
    class Closed(torch.nn.Module):
        def forward(self, x):
            with poptorch.Block("a", ipu_id=0):
                x = x + 1
            return x * 2

    assert torch.equal(Closed()(torch.ones(1)), torch.full((1,), 4.0))
    with pytest.raises(poptorch.Error, match="No active Block"):
        poptorch.inferenceModel(Closed())(torch.ones(1))


def test_strategies_check_their_blocks():
    stage = poptorch.Stage("B0", "B1")
    with pytest.raises(AssertionError, match="already in a stage"):
        poptorch.PipelinedExecution(stage, "B1")
    with pytest.raises(AssertionError, match="must be strings"):
        poptorch.Stage(1)
    with pytest.raises(AssertionError, match="one per stage"):
        poptorch.Phase("B0").ipus(0, 1)
    opts = poptorch.Options().deviceIterations(2)
    opts.setExecutionStrategy(poptorch.PipelinedExecution("B0"))
    with pytest.raises(AssertionError, match="Unknown block 'B1'"):
        poptorch.inferenceModel(chain(2), opts)(torch.ones(2, 2))
    opts = poptorch.Options().deviceIterations(2)
    with pytest.raises(AssertionError, match="needs an ipu_id"):
        poptorch.inferenceModel(chain(1, [None]), opts)(torch.ones(2, 2))


def test_a_failed_compilation_leaves_the_model_usable():
    model = WithLoss(chain(2))
    training = poptorch.trainingModel(model)
    with pytest.raises(poptorch.Error, match="gradientAccumulation"):
        training(torch.ones(1, 2))
    assert not training.isCompiled()
    assert model(torch.ones(1, 2)).isfinite()


def test_loops_and_branches():
    class Loops(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x, flag):
            (y,) = poptorch.for_loop(3, lambda t: t * 2, [x])
            return poptorch.cond(flag, lambda t: t + 1, [y], lambda t: t - 1, [y])[0]

    inference = poptorch.inferenceModel(Loops())
    one = torch.ones(1)
    assert inference(one, torch.tensor([True])).item() == 9
    assert inference(one, torch.tensor([False])).item() == 7
    with pytest.raises(ValueError, match="Object is not list"):
        poptorch.for_loop(2, lambda t: t, one)
    with pytest.raises(poptorch.Error, match="only supported in inference"):
        poptorch.trainingModel(Loops())(one, torch.tensor([True]))


def test_helpers_are_identities_with_gradients():
    x = torch.ones(2, requires_grad=True)
    y = poptorch.nop(x) + poptorch.set_available_memory(x, 0.1)
    y = poptorch.recomputationCheckpoint([y])[0]
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 2.0))
    with pytest.raises(ValueError, match="recomputationCheckpoint"):
        poptorch.recomputationCheckpoint(1)
    with pytest.raises(poptorch.Error, match="needs a tensor"):
        poptorch.nop(1)
    mode = poptorch.MatMulSerializationMode.Disabled
    product = poptorch.serializedMatMul(torch.ones(2, 3), torch.ones(3, 1), mode)
    assert torch.equal(product, torch.full((2, 1), 3.0))


def test_a_multiconv_holds_convolutions():
    class Group(torch.nn.Module):
        def forward(self, x):
            with poptorch.MultiConv():
                return x + 1

    with pytest.raises(poptorch.Error, match="at least one convolution"):
        poptorch.inferenceModel(Group())(torch.ones(1))
    with pytest.raises(ValueError, match="Invalid partials types"):
        poptorch.MultiConv().partialsTypes(torch.int8)


def test_custom_operations_need_a_stand_in(emulator):
    class Cubes(torch.nn.Module):
        def forward(self, x):
            return poptorch.custom_op([x], "Cube", "test", 1, [x], {"times": 2})[0]

    with pytest.raises(poptorch.Error, match="register_custom_op"):
        poptorch.inferenceModel(Cubes())(torch.ones(1))
    emulator.register_custom_op("Cube", "test", lambda x, times: x**3 * times)
    out = poptorch.inferenceModel(Cubes())(torch.full((1,), 2.0))
    assert out.item() == 16
    with pytest.raises(ValueError, match="ASCII"):
        poptorch.custom_op([], "Cube", "test", 1, [], {"é": 1})
