"""Compile reports, and the device's refusals in the user's words."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from devrun.devices.ipu.explain import explain
from devrun.devices.ipu.report import CompileReport
from devrun.devices.ipu.sdk import load
from devrun.devices.ipu.split import apply_split
from devrun.errors import (
    ConfigError,
    DeviceMemoryError,
    DeviceUnavailableError,
    UnsupportedFeatureError,
)
from tests.ipu.harness import ipu, net, train


@pytest.fixture
def sdk():
    return load(emulate=True)


class Net(nn.Module):
    """Two layers, then `middle`, then the loss where there are labels."""

    def __init__(self, middle=None):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        self.middle = middle

    def forward(self, x, y=None):
        x = self.first(x)
        if self.middle is not None:
            x = self.middle(x)
        x = self.last(x)
        return x if y is None else (x, nn.functional.cross_entropy(x, y))


EDGES = [
    {"layer_to_call": "first", "ipu_id": 0},
    {"layer_to_call": "last", "ipu_id": 1},
]
X, Y = torch.zeros(8, 3), torch.zeros(8, dtype=torch.long)


def split(sdk, model):
    apply_split(model, edges=EDGES, sdk=sdk, num_ipus=None, where="edges")
    return model


def said(caplog):
    return [record.getMessage() for record in caplog.records]


def no_thread_left():
    return not [t for t in threading.enumerate() if "ipu-compile" in t.name]


# -- reports ---------------------------------------------------------------------------


def test_a_compilation_is_reported_with_the_memory_of_each_ipu(sdk, caplog):
    caplog.set_level(logging.INFO, "devrun")
    options = sdk.Options()
    options.Training.gradientAccumulation(4)
    executor = sdk.trainingModel(split(sdk, Net()), options)
    with CompileReport(executor, sdk) as report:
        executor.compile(X, Y)
    assert no_thread_left()
    assert report.seconds > 0
    assert report.reused is None
    first, last = report.memory
    assert first["weights"] == 4 * (3 * 4 + 4)
    assert last["weights"] == 4 * (4 * 2 + 2)
    assert said(caplog) == ["compiling the training graph for the IPU", *report.lines]
    assert "executables are not cached" in report.lines[0]
    assert report.lines[2].startswith("memory of IPU 1 (from last): about ")
    assert report.lines[2].endswith("the emulator's estimate for one micro-batch")


def test_a_long_compilation_says_that_it_goes_on(sdk, caplog):
    caplog.set_level(logging.INFO, "devrun")
    executor = sdk.inferenceModel(Net())
    with CompileReport(executor, sdk, what="evaluation", interval=0.01):
        threading.Event().wait(0.1)
        executor.compile(X)
    going = [text for text in said(caplog) if text.endswith("s so far")]
    assert len(going) > 2
    assert going[0].startswith("compiling the evaluation graph: ")
    assert no_thread_left()


def test_a_failed_compilation_ends_the_thread_and_reports_nothing(sdk, caplog):
    caplog.set_level(logging.INFO, "devrun")
    executor = sdk.trainingModel(Net())
    with pytest.raises(sdk.Error), CompileReport(executor, sdk) as report:
        executor.compile(X)
    assert no_thread_left()
    assert report.lines == []
    assert len(said(caplog)) == 1


def test_a_cached_executable_is_seen_by_its_files(sdk, tmp_path):
    silent = SimpleNamespace()  # an SDK without the emulator's own module
    cache = tmp_path / "cache"

    def report(write=False):
        with CompileReport(None, silent, cache_dir=str(cache)) as told:
            if write:
                cache.mkdir()
                (cache / "graph.popef").write_bytes(b"x")
        return told

    none, stored, again = report(), report(write=True), report()
    assert [r.reused for r in (none, stored, again)] == [False, False, True]
    assert f"was stored in {cache}" in stored.lines[0]
    assert f"a cached executable of {cache} was reused" in again.lines[0]
    assert "PopTorch does not tell" in again.lines[1]
    executor = sdk.inferenceModel(Net())
    with CompileReport(executor, sdk, cache_dir=str(cache)) as emulated:
        executor.compile(X)
    assert emulated.reused is None
    assert "keeps no executables" in emulated.lines[0]


# -- explanations ----------------------------------------------------------------------


def refusal(sdk, model, run, **more):
    """What `explain` makes of what the SDK raises, checked to be one line."""
    with pytest.raises((sdk.Error, AssertionError)) as caught:
        run()
    told = explain(caught.value, model, sdk, **more)
    assert told is not None, caught.value
    assert "\n" not in str(told)
    return told


def trained(sdk, model, accumulation=1, replicas=1):
    options = sdk.Options().replicationFactor(replicas).autoRoundNumIPUs(True)
    options.Training.gradientAccumulation(accumulation)
    return sdk.trainingModel(model, options)


def test_too_few_ipus(sdk):
    sdk.emulation.set_ipus(2)
    model = split(sdk, Net())
    told = refusal(sdk, model, lambda: trained(sdk, model, 4, 2)(X, Y))
    assert isinstance(told, DeviceUnavailableError)
    assert "needs 4 IPUs" in str(told)
    assert "the machine has 2" in str(told)


def test_too_many_for_one_process_and_no_power_of_two(sdk):
    x, y = torch.zeros(65, 3), torch.zeros(65, dtype=torch.long)
    model, other = Net(), Net()
    told = refusal(sdk, model, lambda: trained(sdk, model, replicas=65)(x, y))
    assert isinstance(told, ConfigError)
    assert "asks for 65 IPUs, and one process can have 64" in str(told)
    executor = sdk.trainingModel(other, sdk.Options().replicationFactor(3))
    told = refusal(sdk, other, lambda: executor(x[:3], y[:3]))
    assert isinstance(told, ConfigError)
    assert "uses 3 IPUs" in str(told)
    assert "use 4, or set autoRoundNumIPUs" in str(told)


def test_out_of_memory_names_the_block(sdk):
    sdk.emulation.set_memory_limit(150)
    model = split(sdk, Net())
    told = refusal(sdk, model, lambda: trained(sdk, model, 4)(X, Y))
    assert isinstance(told, DeviceMemoryError)
    assert told.exit_code == 6
    assert "out of memory on IPU 0, which runs from 'first' to before 'last'" in str(
        told
    )
    assert "try a smaller micro-batch" in str(told)


def test_a_run_out_of_memory_ends_with_its_own_status(emulation):
    emulation.set_memory_limit(3000)
    options = {"train_split_edges": [{"layer_to_call": "head", "ipu_id": 1}]}
    strategy = {"executionStrategy": "ShardedExecution"}
    with pytest.raises(DeviceMemoryError, match="on IPU 0, which runs from the begin"):
        train(ipu(**options, **strategy), epochs=1)


def test_out_of_memory_as_poplar_says_it(sdk):
    text = "Out of memory on tile 1500: 674752 bytes used but tiles only have 638976 "
    error = sdk.Error(text + "bytes of memory", "poplar_graph_memory_allocation_error")
    told = explain(error, split(sdk, Net()), sdk)
    assert isinstance(told, DeviceMemoryError)
    assert "on IPU 1, which runs from 'last' to the end: tile 1500 needs" in str(told)


def test_a_pipeline_needs_more_accumulation(sdk):
    model = split(sdk, Net())
    told = refusal(sdk, model, lambda: trained(sdk, model, 2)(X, Y))
    assert isinstance(told, ConfigError)
    assert "2 stages needs at least 3 (2 x 2 - 1)" in str(told)
    assert "gradientAccumulation is 2" in str(told)
    executor = sdk.inferenceModel(split(sdk, Net()))
    told = refusal(sdk, model, lambda: executor(X))
    assert "2 stages needs at least 2 deviceIterations" in str(told)


def reads_a_value(x):
    if x.mean() > 0:
        return x
    return -x


def picks(x):
    return x[x > 0]


@pytest.mark.parametrize(
    ("function", "operation", "line"),
    [(reads_a_value, "aten::", 1), (picks, "", 1)],
)
def test_what_cannot_be_compiled_is_named_with_its_line(sdk, function, operation, line):
    model = Net(function)
    told = refusal(sdk, model, lambda: trained(sdk, model)(X, Y))
    assert isinstance(told, UnsupportedFeatureError)
    first = inspect.getsourcelines(function)[1]
    assert f" at {__file__}:{first + line}; " in str(told)
    assert f"Net cannot be compiled for the IPU: the operation {operation}" in str(told)


def test_a_line_in_a_helper_of_the_users_is_found(sdk, tmp_path):
    helper = tmp_path / "helper.py"
    helper.write_text("def middle(x):\n    return x + x.sum().item()\n")
    spec = importlib.util.spec_from_file_location("helper", helper)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = Net(module.middle)
    told = refusal(sdk, model, lambda: trained(sdk, model)(X, Y))
    assert f" at {helper}:2; " in str(told)


def test_an_operation_that_the_sdk_names_without_a_place_is_named(sdk):
    text = (
        "In poptorch/source/ErrorOnUnsupportedAten.cpp:30: 'poptorch_cpp_error': "
        "Unsupported ops found in compiled model: [aten::nan_to_num]. Not all "
        "operations are supported yet by Graphcore's PyTorch compiler."
    )

    told = explain(sdk.Error(text), Net(lambda x: x), sdk)
    assert "Net cannot be compiled for the IPU: the operation aten::nan_to_num; " in (
        str(told)
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
    with pytest.raises(ConfigError, match="add it, times 0 where it is only logged"):
        train(ipu(), model=Logs(None), loss=False, epochs=1)
    _, losses = train(ipu(), model=Logs(0), loss=False, epochs=1)
    assert losses == pytest.approx(train("cpu", epochs=1)[1], rel=1e-4)


def test_what_speaks_for_itself_is_left_alone(sdk):
    model = Net()
    assert explain(ConfigError("clear"), model, sdk) is None
    assert explain(KeyError("x"), model, sdk) is None
    assert explain(RuntimeError("something else"), model, sdk) is None
    assert explain(sdk.Error("something else"), model, sdk) is None
