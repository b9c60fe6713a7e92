"""Options: chaining, checks, freezing, copies, sources."""

import copy

import poptorch
import pytest
import torch


def test_setters_chain_and_read_back():
    opts = poptorch.Options().deviceIterations(3).replicationFactor(2).randomSeed(7)
    opts.Training.gradientAccumulation(4)
    opts.setAvailableMemoryProportion({"IPU0": 0.3, "IPU1": 0.5})
    assert (opts.device_iterations, opts.replication_factor) == (3, 2)
    assert opts.Training.gradient_accumulation == 4
    assert opts.available_memory_proportion == {0: 0.3, 1: 0.5}
    assert opts._values["random_seed"] == 7
    assert torch.initial_seed() == 7
    assert opts.exists("random_seed") and not opts.exists("speed")
    opts.device_iterations = 5
    assert opts.toDict.__self__ is opts and opts.device_iterations == 5


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (AssertionError, lambda o: o.deviceIterations(1.5)),
        (AssertionError, lambda o: o.replicationFactor("2")),
        (AssertionError, lambda o: o.randomSeed(None)),
        (AssertionError, lambda o: o.outputMode("All")),
        (AssertionError, lambda o: o.outputMode(poptorch.OutputMode.EveryN)),
        (AssertionError, lambda o: o.setAvailableMemoryProportion({"0": 0.3})),
        (AssertionError, lambda o: o.setExecutionStrategy("Sharded")),
        (AssertionError, lambda o: o.connectionType(1)),
        (AssertionError, lambda o: setattr(o, "device_iterations", "2")),
        (AssertionError, lambda o: setattr(o, "speed", 2)),
        (AttributeError, lambda o: o.speed),
        (AssertionError, lambda o: o.toDict()),
        (AssertionError, lambda o: o.TensorLocations.numIOTiles(33)),
        (AssertionError, lambda o: o.TensorLocations.setWeightLocation({})),
        (ValueError, lambda o: o.Precision.setPartialsType(torch.int8)),
        (AssertionError, lambda o: o.Precision.enableFloatingPointExceptions(1)),
        (ValueError, lambda o: o.Jit.traceModel(True)),
        (ValueError, lambda o: o.inputReplicaGrouping(2, poptorch.CommGroupType.All)),
        (
            ValueError,
            lambda o: o.inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive),
        ),
    ],
)
def test_wrong_values_are_refused(error, change):
    with pytest.raises(error):
        change(poptorch.Options())


SETTERS = [
    lambda o: o.deviceIterations(2),
    lambda o: o.randomSeed(2),
    lambda o: o.outputMode(poptorch.OutputMode.All),
    lambda o: o.Training.gradientAccumulation(2),
    lambda o: o.Precision.enableStochasticRounding(True),
    lambda o: o.Precision.setPartialsType(torch.half),
    lambda o: o.Distributed.configureProcessId(0, 2),
    lambda o: o.TensorLocations.numIOTiles(32),
    lambda o: o._Popart.set("enableOutlining", True),
    lambda o: o.setExecutionStrategy(poptorch.ShardedExecution()),
    lambda o: o.enableExecutableCaching("x"),
    lambda o: setattr(o, "device_iterations", 3),
]


@pytest.mark.parametrize("change", SETTERS)
@pytest.mark.parametrize("use", ["model", "loader"])
def test_used_options_are_frozen_and_copies_are_not(change, use, make):
    opts = poptorch.Options()
    if use == "model":
        executor = poptorch.inferenceModel(make(), opts)
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            change(executor.options)
    else:
        poptorch.DataLoader(opts, torch.utils.data.TensorDataset(torch.ones(4)))
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        change(opts)
    change(opts.clone())
    change(copy.deepcopy(opts))


def test_output_mode_is_resolved_in_the_executors_copy(make):
    opts, model = poptorch.Options(), make()
    training = poptorch.trainingModel(model, opts)
    inference = poptorch.inferenceModel(model, opts)
    assert opts.defaultOutputMode()
    assert training.options.output_mode == poptorch.OutputMode.Final
    assert inference.options.output_mode == poptorch.OutputMode.All
    assert inference.options.toDict()["replication_factor"] == 1


def test_json_and_files_call_setters(tmp_path, monkeypatch):
    text = '{"Training.gradientAccumulation": 8, "outputMode": "OutputMode.All"}'
    opts = poptorch.Options().from_json(text)
    assert opts.Training.gradient_accumulation == 8
    assert opts.output_mode == poptorch.OutputMode.All
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", text)
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "/cache")
    assert poptorch.Options()._popart.options["cachePath"] == "/cache"
    assert poptorch.Options().Training.gradient_accumulation == 8
    file = tmp_path / "o.conf"
    file.write_text("# a comment\n\n deviceIterations(4)\nrandomSeed(1")
    with pytest.raises(poptorch.options.ConfigFileError, match=r"line 2 of o\.conf"):
        poptorch.Options().loadFromFile(str(file))
    file.write_text("deviceIterations(__import__('os').getpid())")
    with pytest.raises(poptorch.options.ConfigFileError, match="__import__"):
        poptorch.Options().loadFromFile(str(file))


def test_accumulation_is_refused_for_inference(make):
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(2)
    with pytest.raises(poptorch.Error, match="gradientAccumulation to 1"):
        poptorch.inferenceModel(make(), opts)


def test_processes_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    distributed = poptorch.Options().Distributed
    assert (distributed.numProcesses, distributed.processId) == (4, 3)
    assert distributed.disable().numProcesses == 1


def test_log_levels():
    with pytest.raises(ValueError, match="LOUD"):
        poptorch.setLogLevel("LOUD")
    poptorch.setLogLevel("ERR")
    poptorch.setLogLevel(3)
