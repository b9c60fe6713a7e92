"""Split edges and recomputation checkpoints, on the emulated device."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from devrun.devices.ipu.sdk import load
from devrun.devices.ipu.split import (
    apply_split,
    recompute,
    remove_recompute,
    remove_split,
    split_of,
)
from devrun.errors import ConfigError, DevrunError
from tests.ipu.harness import ipu, train
from tests.support.near import assert_near


@pytest.fixture
def sdk():
    return load(emulate=True)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.fc(x))


class Net(nn.Module):
    """The head is defined first and called last; `again` is a second name of `stem`."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.stem = nn.Linear(3, 4)
        self.again = self.stem
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x, y=None):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        x = self.head(x)
        return x if y is None else (x, nn.functional.cross_entropy(x, y))


def edges(*pairs):
    return [{"layer_to_call": name, "ipu_id": ipu} for name, ipu in pairs]


FOUR = edges(("stem", 0), ("layers.1", 1), ("layers.2", 2), ("head", 3))


def weights_per_ipu(sdk, model):
    """Bytes of weights on each IPU, of `model` compiled for inference."""
    options = sdk.Options().setExecutionStrategy(sdk.ShardedExecution())
    options.autoRoundNumIPUs(True)
    executor = sdk.inferenceModel(model, options)
    executor.compile(torch.zeros(1, 3))
    return [row["weights"] for row in sdk.emulation.memory_estimate(executor)]


def apply(sdk, model, given, num_ipus=None):
    apply_split(model, edges=given, sdk=sdk, num_ipus=num_ipus, where="split_edges")


def test_the_layers_of_a_block_are_on_its_ipu(sdk):
    model = Net().eval()
    apply(sdk, model, FOUR, num_ipus=4)
    stem, layer, head = 4 * (3 * 4 + 4), 4 * (4 * 4 + 4), 4 * (4 * 2 + 2)
    assert weights_per_ipu(sdk, model) == [stem + layer, layer, 2 * layer, head]
    assert split_of(model) == [(e["layer_to_call"], e["ipu_id"]) for e in FOUR]


def test_a_layer_by_index_is_that_of_named_modules(sdk):
    by_name, by_index = Net().eval(), Net().eval()
    index = [name for name, _ in by_index.named_modules()].index("layers.2")
    apply(sdk, by_name, edges(("layers.2", 1)))
    apply(sdk, by_index, [{"layer_to_call": index, "ipu_id": 1, "user_id": 7}])
    assert split_of(by_name) == split_of(by_index) == [("layers.2", 1)]
    assert weights_per_ipu(sdk, by_name) == weights_per_ipu(sdk, by_index)


def test_the_model_stays_what_it_was_on_the_host(sdk):
    model = Net()
    keys, x = list(model.state_dict()), torch.randn(5, 3)
    expected = model(x)
    apply(sdk, model, FOUR)
    recompute(model, ["layers.0", "head"], sdk)
    assert list(model.state_dict()) == keys
    assert type(model.stem) is nn.Linear
    assert torch.equal(model(x), expected)
    model(x).sum().backward()
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), expected)
    assert split_of(twin) == split_of(model)


def test_other_edges_take_the_place_of_the_first(sdk):
    model = Net().eval()
    sdk.BeginBlock(model.layers[3], ipu_id=0)  # the user's own
    apply(sdk, model, FOUR)
    apply(sdk, model, edges(("layers.0", 0)))
    assert len(weights_per_ipu(sdk, model)) == 1
    apply(sdk, model, edges(("layers.1", 1)))
    remove_split(model)
    assert split_of(model) == []
    hooks = [name for name, m in model.named_modules() if m._forward_pre_hooks]
    assert hooks == ["layers.3"]
    apply(sdk, model, [])
    assert len(model.layers[3]._forward_pre_hooks) == 1


def test_a_failed_split_leaves_nothing(sdk):
    model = Net()
    sdk.BeginBlock(model.layers[1], ipu_id=1)
    with pytest.raises(ConfigError, match=r"own code begins a block at 'layers\.1'"):
        apply(sdk, model, FOUR)
    assert split_of(model) == []
    hooks = [name for name, m in model.named_modules() if m._forward_pre_hooks]
    assert hooks == ["layers.1"]


@pytest.mark.parametrize(
    ("given", "num_ipus", "message"),
    [
        (edges(("stemm", 0)), None, "is no layer of the model; did you mean 'stem'"),
        (edges((99, 0)), None, "layer_to_call is 99, but the model has the layers 0"),
        (edges((["stem"], 0)), None, "is no layer of the model"),
        (edges(("layers", 0)), None, "never called itself; .* such as 'layers.0'"),
        (edges(("stem", 0), (2, 1)), None, r"\[1\] names 'stem', as .*\[0\]"),
        (edges(("stem", 0), ("again", 1)), None, "'again', which is 'stem', as"),
        (edges(("stem", 0), ("head", 2)), None, "leaves out IPU 1 of 0 to 2"),
        (edges(("stem", 0), ("head", 2)), 2, "0 to 2, but num_ipus is 2"),
        (edges(("stem", 0), ("head", 1)), 4, "0 to 1, but num_ipus is 4"),
        (edges(("stem", -1)), None, "ipu_id must be 0 or more, got -1"),
        (edges(("stem", "0")), None, "ipu_id must be 0 or more, got '0'"),
        ([{"layer_to_call": "stem"}], None, r"\[0\] must be {layer_to_call, ipu_id"),
        (["stem"], None, r"split_edges\[0\] must be"),
    ],
)
def test_bad_edges_are_refused_in_one_line(sdk, given, num_ipus, message):
    model, before = Net(), copy.deepcopy(given)
    with pytest.raises(ConfigError, match=message) as caught:
        apply(sdk, model, given, num_ipus)
    assert str(caught.value).startswith("split_edges")
    assert "\n" not in str(caught.value)
    assert given == before
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_the_outputs_of_named_layers_are_kept_on_the_device_only(sdk):
    kept = []

    def checkpoint(tensor):
        kept.append(tuple(tensor.shape))
        return sdk.recomputationCheckpoint(tensor)

    watched = SimpleNamespace(
        recomputationCheckpoint=checkpoint, isRunningOnIpu=sdk.isRunningOnIpu
    )
    model = Net()
    recompute(model, ["stem", "layers.1"], watched)
    recompute(model, ["layers.1", "head"], watched)
    model(torch.randn(5, 3))
    assert kept == []
    executor = sdk.inferenceModel(model.eval())
    x = torch.randn(5, 3)
    assert_near(executor(x), model(x))
    assert kept == [(5, 4), (5, 2)]
    remove_recompute(model)
    assert not any(m._forward_hooks for m in model.modules())


def test_a_checkpoint_after_no_layer_is_refused(sdk):
    with pytest.raises(ConfigError, match=r"train_ckpt_nodes: 'layer\.1' is no layer"):
        recompute(Net(), ["layer.1"], sdk)
    with pytest.raises(ConfigError, match="never called itself"):
        recompute(Net(), ["layers"], sdk)


class Chain(nn.Module):
    """Calls `order` of its layers, which are defined the other way round."""

    def __init__(self, order):
        super().__init__()
        self.c, self.b, self.a = (nn.Linear(32, 32) for _ in range(3))
        self.order = order

    def forward(self, x):
        x = x.flatten(1)
        for name in self.order:
            x = torch.tanh(getattr(self, name)(x))
        return x


class OpenMMLab(Chain):
    """A `train_step` that returns MMCV's dict."""

    def train_step(self, batch, optimizer):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        return {"loss": loss, "log_vars": {}, "num_samples": len(batch[1])}


def trained(model, given, strategy):
    options = {} if strategy is None else {"executionStrategy": strategy}
    pairs = [(each[0], int(each[1])) for each in given.split()]
    train(
        ipu(train_split_edges=edges(*pairs), **options),
        model=model,
        loss=None if type(model) is Chain else False,
        optimizer_config={"cumulative_iters": 8},
        epochs=1,
    )


FORWARD = {
    "in any order of the list": ("abc", "c1 a0", None),
    "on one IPU again": ("abbc", "a0 b1", "SameAsIpu"),
    "back by AutoIncrement": ("abc", "a0 b1 c0", "AutoIncrement"),
    "back and forth without a pipeline": ("abab", "a0 b1", "ShardedExecution"),
}


@pytest.mark.parametrize(("order", "given", "strategy"), FORWARD.values(), ids=FORWARD)
def test_what_runs_forward_is_accepted(order, given, strategy, emulation):
    trained(Chain(order), given, strategy)
    assert emulation.counts["compile"] == 1


BACKWARDS = {
    "back to an IPU": ("abc", "a0 b1 c0", "goes back from IPU 1 to IPU 0"),
    "called again": ("aba", "a0 b1", "goes back from IPU 1 to IPU 0"),
}


@pytest.mark.parametrize("kind", [Chain, OpenMMLab])
@pytest.mark.parametrize(("order", "given", "says"), BACKWARDS.values(), ids=BACKWARDS)
def test_what_runs_backwards_is_refused_before_it_is_compiled(
    kind, order, given, says, emulation
):
    model = kind(order)
    with pytest.raises(DevrunError) as caught:
        trained(model, given, None)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert emulation.counts["compile"] == 0
    # nothing of PopTorch's or of the split is left on the user's model
    assert type(model) is kind
    assert {type(weight) for weight in model.parameters()} == {nn.Parameter}
    assert not any(each._forward_pre_hooks for each in model.modules())
    assert not [name for name in vars(model) if name.startswith("_ipu")]
