"""What cannot work on an IPU is one line, before or instead of a compilation."""

import inspect
import os

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from devrun.config import Config
from devrun.devices.ipu.sdk import load
from devrun.errors import (
    ConfigError,
    DeviceMemoryError,
    DeviceUnavailableError,
    DevrunError,
    UnsupportedFeatureError,
)
from devrun.hooks import EvalHook, Hook
from devrun.runners.training import build_training
from tests.ipu.harness import Net, ipu, loader, make, net, train

SHOWN = os.path.relpath(__file__)


def edges(*pairs):
    return [{"layer_to_call": name, "ipu_id": place} for name, place in pairs]


def refusal(kind=DevrunError, **options):
    device = options.pop("device", ipu())
    with pytest.raises(kind) as caught:
        train(device, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


SPLITS = {
    "no layer": (edges(("conv", 0), ("heat", 1)), "did you mean 'head'"),
    "one layer twice": (edges(("conv", 0), ("conv", 1)), "begins one block"),
    "a gap": (edges(("conv", 0), ("head", 2)), "without a gap"),
    "no ipu": (
        [{"layer_to_call": "conv"}],
        "must be {layer_to_call, ipu_id",
    ),
    "too little accumulation": (
        edges(("conv", 0), ("dropout", 1), ("head", 2)),
        "number of pipeline stages (5)",
    ),
}


@pytest.mark.parametrize(("split", "says"), SPLITS.values(), ids=SPLITS)
def test_a_split_that_cannot_be(split, says):
    device = ipu(train_split_edges=split, autoRoundNumIPUs=True)
    assert says in refusal(device=device, optimizer_config={"cumulative_iters": 3})


class OwnBlocks(nn.Module):
    """On two IPUs by its own code."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x):
        import poptorch

        poptorch.Block.start(ipu_id=0)
        x = torch.tanh(self.net.conv(x))
        poptorch.Block.start(ipu_id=1)
        return self.net.head(x.flatten(1))


def test_a_model_that_begins_blocks_itself_may_have_any_number_of_ipus():
    device = ipu(availableMemoryProportion=[0.3, 0.2])
    update = {"cumulative_iters": 4}
    _, losses = train(device, model=OwnBlocks(), optimizer_config=update, epochs=1)
    assert len(losses) == 4
    text = refusal(device=device, model=OwnBlocks())
    assert "gradientAccumulation is 1" in text


def test_a_batch_that_cannot_be_divided():
    batch = next(iter(loader(batch_size=5)))
    runner, _ = make(ipu(replicas=2))
    runner.prepare()
    with pytest.raises(ConfigError, match="5 samples cannot be divided over 2"):
        runner.adapter.train_step(runner.session.wrapped, batch, runner.optimizer)


def test_a_data_set_smaller_than_one_update():
    text = refusal(ConfigError, device=ipu(replicas=16), data=loader(32, 4))
    assert "32 samples, fewer than one update needs" in text
    assert "micro-batch 4 x accumulation 1 x replicas 16 = 64 samples" in text


def growing(samples):
    """Pads to the longest of the batch, as many collate functions do."""
    longest = 4 + samples[0][0] % 3
    x = torch.zeros(len(samples), longest)
    return x, torch.tensor([label for _, label in samples])


def test_a_dynamic_shape_is_named_with_both_shapes():
    data = DataLoader(
        [(index, index % 4) for index in range(12)],
        batch_size=4,
        collate_fn=growing,
    )

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(1, 4)

        def forward(self, x):
            return self.head(x.mean(1, keepdim=True))

    text = refusal(UnsupportedFeatureError, model=Mean(), data=data)
    assert "batch[0] has the shape (4, 5)" in text
    assert "compiled for (4, 4)" in text
    assert "data.buckets: {pad: {0: 0}, num: 1}" in text


class Sign(torch.optim.SGD):
    def step(self, closure=None):
        """Not SGD's."""


OPTIMIZERS = {
    "adagrad": (lambda p: torch.optim.Adagrad(p), "Adagrad cannot run on an IPU"),
    "PopTorch's": (
        lambda p: load(True).optim.SGD(p, lr=0.1),
        "take SGD, AdamW, Adam, RMSprop of torch.optim",
    ),
    "own step": (lambda p: Sign(p, lr=0.1), "Sign cannot run on an IPU"),
    "amsgrad": (lambda p: torch.optim.Adam(p, amsgrad=True), "amsgrad=True"),
    "maximize": (lambda p: torch.optim.SGD(p, lr=1.0, maximize=True), "maximize=True"),
}


@pytest.mark.parametrize(("build", "says"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimizer_the_device_does_not_have(build, says, emulation):
    model = net()
    text = refusal(
        UnsupportedFeatureError, model=model, optimizer=build(model.parameters())
    )
    assert says in text
    assert emulation.counts["compile"] == 0


POLICIES = {
    "value clipping": ({"grad_clip": {"clip_value": 1.0}}, "give max_norm alone"),
    "another norm": ({"grad_clip": {"max_norm": 1.0, "norm_type": 1}}, "2-norm"),
    "bf16": ({"precision": "bf16"}, "'bf16' is not one of an IPU"),
    "skip": (
        {"nonfinite": "skip"},
        "is not possible on an IPU, where the update is done",
    ),
    "micro-batch": ({"micro_batch": "auto"}, "set samples_per_gpu to the micro-batch"),
    "anomalies": ({"detect_anomalous_params": True}, "needs gradients on the host"),
    "unknown option": ({"options": {"acum_type": "half"}}, "did you mean 'accum_type'"),
    "accumulator": ({"options": {"accum_type": "int"}}, "half or float, got 'int'"),
    "scaler": (
        {"type": "Fp16OptimizerHook", "loss_scale": {"init_scale": 2.0}},
        "is a number, or 'dynamic'",
    ),
}


@pytest.mark.parametrize(("policy", "says"), POLICIES.values(), ids=POLICIES)
def test_an_update_the_device_cannot_make(policy, says, emulation):
    assert says in refusal(optimizer_config=policy)
    assert emulation.counts["compile"] == 0


class Raises(Hook):
    """A momentum where there was none."""

    def before_train_iter(self, runner):
        if runner.iter == 2:
            for group in runner.optimizer.param_groups:
                group["momentum"] = 0.5


def test_a_setting_that_is_fixed_by_the_compilation():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runner, _ = make(ipu(), model=model, optimizer=optimizer)
    runner.register_hook(Raises())
    with pytest.raises(ConfigError, match=r"momentum .* constant") as caught:
        runner.run([loader()], [("train", 1)])
    assert "\n" not in str(caught.value)
    runner.close()


def test_clipping_with_an_optimizer_that_does_not_clip():
    model = net()
    optimizer = torch.optim.RMSprop(model.parameters())
    text = refusal(
        model=model,
        optimizer=optimizer,
        optimizer_config={"grad_clip": {"max_norm": 1.0}},
    )
    assert "cannot be combined with RMSprop" in text


def test_a_machine_that_is_too_small(emulation):
    assert "use 4" in refusal(device=ipu(replicas=3)).replace("minimum of", "use")
    emulation.set_ipus(4)
    text = refusal(DeviceUnavailableError, device=ipu(replicas=8), data=loader(64, 4))
    assert "the machine has 4" in text
    assert "use fewer replicas (--ipu-replicas)" in text
    emulation.set_memory_limit(3000)
    with pytest.raises(DeviceMemoryError, match="on IPU 0 .* try a smaller") as caught:
        train(ipu(), epochs=1)
    assert caught.value.exit_code == 6


def test_a_process_of_poprun_is_refused(monkeypatch):
    monkeypatch.setenv("POPDIST_NUM_LOCAL_REPLICAS", "2")
    assert "take --ipu-replicas N instead of a launcher (or poprun)" in refusal()


class Item(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        x = x.flatten(1)
        return self.head(x) * x.sum().item()


def test_a_model_that_cannot_be_compiled_is_named_with_its_line():
    line = inspect.getsourcelines(Item.forward)[1] + 2
    text = refusal(model=Item())
    assert f"Item cannot run on an IPU at {SHOWN}:{line} in forward: " in text
    assert "item" in text


class Picky(Net):
    """Its evaluation reads a value, which no graph can."""

    def forward(self, x):
        x = super().forward(x)
        if not self.training and x.sum().item() > 1e9:
            return -x
        return x


def test_an_evaluation_that_cannot_be_compiled_has_a_cure():
    def evaluated(**options):
        runner, losses = make(ipu(**options), model=Picky(), epochs=1)
        runner.register_hook(EvalHook(loader(samples=10), metric="accuracy"), "LOW")
        try:
            runner.run([loader()], [("train", 1)])
        finally:
            runner.close()
        return losses.values

    with pytest.raises(UnsupportedFeatureError) as caught:
        evaluated()
    text = str(caught.value)
    assert text.startswith("the evaluation cannot be compiled: ")
    assert f" at {SHOWN}:" in text
    assert "set ipu.evaluate_on: host" in text
    assert len(evaluated(evaluate_on="host")) == 16


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.table(x).mean(1))


@pytest.mark.parametrize("place", ["device", "host"])
@pytest.mark.parametrize("where", ["train", "evaluation"])
def test_an_index_out_of_range_is_named_as_on_other_devices(where, place):
    def words(samples, largest):
        x = torch.zeros(samples, 3, dtype=torch.long)
        x[1, 2] = largest
        data = TensorDataset(x, torch.zeros(samples, dtype=torch.long))
        return DataLoader(data, batch_size=4)

    def run(device):
        runner, _ = make(device, model=Words(), epochs=1)
        runner.register_hook(EvalHook(words(8, 7 if where == "evaluation" else 0)))
        with pytest.raises(ConfigError) as caught:
            runner.run([words(8, 7 if where == "train" else 0)], [("train", 1)])
        runner.close()
        return str(caught.value).partition(" (epoch")[0]

    text = run(ipu(evaluate_on=place))
    assert text == run("cpu")
    assert text.startswith(
        "index 7 of sample 1 of the batch (batch[0]) is out of range"
    )


class Logs(nn.Module):
    """Logs a second loss, `weight` times a part of the first."""

    def __init__(self, weight):
        super().__init__()
        self.net, self.weight = net(), weight

    def train_step(self, batch, optimizer):
        output = self.net(batch[0])
        loss = nn.functional.cross_entropy(output, batch[1])
        other = nn.functional.mse_loss(output, torch.zeros_like(output))
        if self.weight is not None:
            loss = loss + self.weight * other
        return {"loss": loss, "log_vars": {"other": other}, "num_samples": len(output)}


def test_a_second_loss_must_be_part_of_the_first():
    assert "Multiple independent losses" in refusal(model=Logs(None), loss=False)
    _, losses = train(ipu(), model=Logs(0), loss=False, epochs=1)
    assert losses == pytest.approx(train("cpu", epochs=1)[1], rel=1e-4)


def test_several_optimizers():
    model = net()
    both = {
        "a": torch.optim.SGD(model.conv.parameters(), lr=0.1),
        "b": torch.optim.SGD(model.head.parameters(), lr=0.1),
    }
    assert "several optimizers (a, b)" in refusal(model=model, optimizer=both)


class StepsItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(32, 4)

    def train_step(self, batch, optimizer):
        loss = nn.functional.cross_entropy(self.head(batch[0].flatten(1)), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "log_vars": {}, "num_samples": len(batch[0])}


def test_a_model_that_updates_itself():
    text = refusal(model=StepsItself(), loss=False)
    assert "cannot run on an IPU" in text


WRONG = {
    "replikas: 2": "replikas: device 'ipu' has no option 'replikas'; did you mean",
    "evaluate_on: gpu": "evaluate_on: must be device or host, got 'gpu'",
    "deviceIterations: two": "deviceIterations: must be an integer of",
    "eval_cfg: {outputMode: all}": "eval_cfg.outputMode: is not for evaluation",
}


@pytest.mark.parametrize(("line", "says"), WRONG.items())
def test_a_wrong_option_in_a_file_is_told_with_its_line(line, says, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: {type: MLP, in_features: 4, hidden: [4], num_classes: 2}\n"
        "device: {type: ipu, emulate: true}\n"
        f"ipu:\n  {line}\n"
        "data: {train: {type: SyntheticImages}}\n"
        "optimizer: {type: SGD, lr: 0.1}\n"
        "runner: {max_epochs: 1}\n"
    )
    with pytest.raises(ConfigError) as caught:
        build_training(Config.fromfile(path))
    assert str(caught.value).startswith(f"{path}:4: ipu.{says}")
