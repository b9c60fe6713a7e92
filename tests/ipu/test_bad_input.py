"""What cannot work on an IPU is one line, before or instead of a compilation."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from devrun.config import Config
from devrun.errors import (
    ConfigError,
    DeviceUnavailableError,
    DevrunError,
    UnsupportedFeatureError,
)
from devrun.hooks import Hook
from devrun.runners.training import build_training
from tests.ipu.harness import ipu, loader, make, net, train


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
    "backwards": (edges(("conv", 1), ("head", 0)), "goes backwards"),
    "a gap": (edges(("conv", 0), ("head", 2)), "without a gap"),
    "no ipu": ([{"layer_to_call": "conv"}], "has no ipu_id"),
}


@pytest.mark.parametrize(("split", "says"), SPLITS.values(), ids=SPLITS)
def test_a_split_that_cannot_be(split, says, emulation):
    update = {"cumulative_iters": 3}
    assert says in refusal(device=ipu(train_split_edges=split), optimizer_config=update)
    assert emulation.counts["compile"] == 0


TWO = edges(("conv", 0), ("head", 1))
THREE = edges(("conv", 0), ("dropout", 1), ("head", 2))
CONTRADICTIONS = {
    "more shares than IPUs": (
        {"availableMemoryProportion": [0.3, 0.3]},
        "names IPU1, but the model is on 1 IPU(s)",
    ),
    "a share of no IPU": (
        {"availableMemoryProportion": {2: 0.3}, "train_split_edges": TWO},
        "names IPU2, but the model is on 2 IPU(s)",
    ),
    "the setter of PopTorch": (
        {"setAvailableMemoryProportion": {"IPU2": 0.3}, "train_split_edges": TWO},
        "names IPU2, but the model is on 2 IPU(s)",
    ),
    "fewer shares than IPUs": (
        {"availableMemoryProportion": [0.3], "train_split_edges": TWO},
        "has 1 values, but the model is on 2 IPUs",
    ),
    "three IPUs": ({"train_split_edges": THREE}, "powers of two: use 4"),
    "three replicas": ({"replicas": 3}, "powers of two: use 4"),
    "three IPUs in evaluation": (
        {"train_split_edges": TWO, "eval_split_edges": THREE},
        "3 IPUs (3 per replica x 1 replicas) in evaluation",
    ),
    "a pipeline in evaluation": (
        {"train_split_edges": TWO, "eval_cfg": {"executionStrategy": "SameAsIpu"}},
        "needs deviceIterations 2 or more, not 1",
    ),
    "too many replicas in evaluation": (
        {"eval_cfg": {"replicationFactor": 128}},
        "in evaluation are more than the 64",
    ),
    "a gap in evaluation": (
        {"eval_split_edges": edges(("conv", 0), ("head", 2))},
        "eval_split_edges leaves out IPU 1",
    ),
}


@pytest.mark.parametrize(
    ("options", "says"), CONTRADICTIONS.values(), ids=CONTRADICTIONS
)
def test_options_that_contradict_each_other(options, says, emulation):
    update = {"cumulative_iters": 8}
    assert says in refusal(device=ipu(**options), optimizer_config=update)
    assert emulation.counts["compile"] == 0


AGREE = [
    {"availableMemoryProportion": {0: 0.3, 1: 0.2}, "train_split_edges": TWO},
    {"availableMemoryProportion": 0.3, "train_split_edges": TWO},
    {"setExecutionStrategy": "ShardedExecution", "train_split_edges": TWO},
    {
        "train_split_edges": TWO,
        "eval_split_edges": THREE,
        "eval_cfg": {"availableMemoryProportion": [0.3] * 3, "autoRoundNumIPUs": True},
    },
    {"eval_split_edges": TWO, "availableMemoryProportion": [0.3]},
    {"replicas": 4, "inputReplicaGrouping": [2, "CommGroupType.Consecutive"]},
]


@pytest.mark.parametrize("options", AGREE)
def test_options_that_agree(options):
    runner, _ = make(ipu(**options), optimizer_config={"cumulative_iters": 8})
    runner.prepare()
    runner.close()


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
    assert "gradientAccumulation is 1: raise cumulative_iters" in text


def test_an_accumulation_smaller_than_the_pipeline_needs(emulation):
    device = ipu(train_split_edges=edges(("conv", 0), ("head", 1)))
    text = refusal(ConfigError, device=device, optimizer_config={"cumulative_iters": 2})
    assert "needs 3 (2 x 2 - 1) or more" in text
    assert emulation.counts["compile"] == 0


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
    assert "data.buckets: {pad: {0: 0}, num: 1} pads all to one size" in text


class Sign(torch.optim.SGD):
    def step(self, closure=None):
        """Not SGD's."""


class Lamb(torch.optim.Optimizer):
    """Called as timm's."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})


OPTIMIZERS = {
    "adagrad": (lambda p: torch.optim.Adagrad(p), "Adagrad cannot run on an IPU"),
    "lamb": (lambda p: Lamb(p, lr=0.1), "PopTorch's LAMB clips no gradients"),
    "own step": (lambda p: Sign(p, lr=0.1), "has a step() of its own"),
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
    "value clipping": ({"grad_clip": {"clip_value": 1.0}}, "use max_norm"),
    "another norm": ({"grad_clip": {"max_norm": 1.0, "norm_type": 1}}, "2-norm"),
    "bf16": ({"precision": "bf16"}, "'bf16' is not one of an IPU"),
    "skip": (
        {"nonfinite": "skip"},
        "is not possible on an IPU, where the update is done",
    ),
    "micro-batch": ({"micro_batch": "auto"}, "set samples_per_gpu to the micro-batch"),
    "skipped spikes": ({"spike": "skip"}, "is done when the loss comes back"),
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


def test_too_few_ipus(emulation):
    emulation.set_ipus(4)
    text = refusal(DeviceUnavailableError, device=ipu(replicas=8), data=loader(64, 4))
    assert "needs 8 IPUs (1 per replica x 8 replicas)" in text


POPRUN = {
    "POPDIST_NUM_TOTAL_REPLICAS": "4",
    "POPDIST_NUM_LOCAL_REPLICAS": "4",
    "POPDIST_NUM_IPUS_PER_REPLICA": "1",
    "POPDIST_REPLICA_INDEX_OFFSET": "0",
}


def test_poprun_chooses_the_replicas(monkeypatch):
    for name, value in POPRUN.items():
        monkeypatch.setenv(name, value)
    _, losses = train(ipu())
    assert len(losses) == 2 * 64 // (4 * 4)
    assert "--num-replicas 4, but the config says 2" in refusal(device=ipu(replicas=2))
    device = ipu(train_split_edges=TWO)
    update = {"cumulative_iters": 3}
    text = refusal(device=device, optimizer_config=update)
    assert "--ipus-per-replica 1, but the config says 2" in text


def test_one_process_of_several_is_refused(monkeypatch):
    device = ipu(Distributed={"configureProcessId": [0, 2]})
    assert "PopTorch counts 2 processes" in refusal(device=device)
    for name, value in POPRUN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("POPDIST_NUM_LOCAL_REPLICAS", "2")
    assert "poprun started 2 instances" in refusal()


def test_an_offline_target_compiles_and_says_that_nothing_runs(emulation, tmp_path):
    device = ipu(useOfflineIpuTarget=2, enableExecutableCaching=str(tmp_path))
    text = refusal(UnsupportedFeatureError, device=device)
    assert "compiled for an offline target" in text
    assert str(tmp_path) in text
    assert emulation.counts["compile"] == 1


class Item(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        x = x.flatten(1)
        return self.head(x) * x.sum().item()


def test_a_model_that_cannot_be_compiled_is_named_with_its_line():
    text = refusal(model=Item())
    assert "Item cannot be compiled for the IPU" in text
    assert "item" in text
    assert "test_bad_input.py" in text


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
    assert "cannot be compiled" in text or "cannot run on an IPU" in text


WRONG = {
    "replikas: 2": "replikas: device 'ipu' has no option 'replikas'; did you mean",
    "evaluate_on: gpu": "evaluate_on: must be device or host, got 'gpu'",
    "deviceIterations: two": "deviceIterations: must be an integer of",
    "eval_cfg: {outputMode: all}": "eval_cfg.outputMode: outputMode in eval_cfg: eval",
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
