"""The `ipu:` section as options of PopTorch, and what it refuses."""

import copy

import pytest
import torch

from devrun.devices.ipu.adapter import IPUAdapter
from devrun.devices.ipu.options import (
    inference_options,
    parse_settings,
    training_options,
)
from devrun.devices.resolve import resolve_device
from devrun.errors import ConfigError, DevrunError
from devrun.step import UpdatePolicy
from tests.ipu.harness import ipu

FULL = {
    "randomSeed": 42,
    "partialsType": "half",
    "Precision": {"enableStochasticRounding": True},
    "TensorLocations": {
        "numIOTiles": 64,
        "setOptimizerLocation": {"useOnChipStorage": False},
    },
    "enableExecutableCaching": "cache",
    "_Popart": {"saveInitializersToFile": "weights.onnx"},
    "train_cfg": {
        "executionStrategy": "SameAsIpu",
        "Training": {
            "gradientAccumulation": 8,
            "accumulationAndReplicationReductionType": "ReductionType.Sum",
        },
        "availableMemoryProportion": [0.3, 0.4],
        "outputMode": "OutputMode.Final",
    },
    "eval_cfg": {"deviceIterations": 4, "executionStrategy": "ShardedExecution"},
    "train_split_edges": [
        {"layer_to_call": "a", "ipu_id": 0},
        {"layer_to_call": "b", "ipu_id": 1},
    ],
}


def made(cfg, policy=None):
    adapter = IPUAdapter.from_config(ipu(**cfg))
    settings, sdk = adapter.settings, adapter.sdk
    policy = UpdatePolicy() if policy is None else policy
    ipus = len(cfg.get("train_split_edges", ())) or None
    training = training_options(sdk, settings, policy, 7, ipus)
    return sdk, training, inference_options(sdk, settings, 7)


def test_every_key_reaches_its_setter_and_the_config_stays():
    cfg = copy.deepcopy(FULL)
    sdk, training, inference = made(cfg)
    assert cfg == FULL
    assert training.random_seed == inference.random_seed == 42
    assert training.Training.gradient_accumulation == 8
    assert inference.Training.gradient_accumulation == 1
    assert training.available_memory_proportion == {0: 0.3, 1: 0.4}
    assert training.output_mode == sdk.OutputMode.Final
    assert inference.output_mode == sdk.OutputMode.All
    assert (training.device_iterations, inference.device_iterations) == (1, 4)
    assert isinstance(training._execution_strategy, sdk.PipelinedExecution)
    assert isinstance(inference._execution_strategy, sdk.ShardedExecution)
    reduction = training.Training.accumulation_and_replication_reduction_type
    assert reduction == sdk.ReductionType.Sum
    for options in (training, inference):
        popart = options._Popart.options
        assert popart["cachePath"] == "cache"
        assert popart["partialsTypeMatMuls"] == "half"
        assert popart["saveInitializersToFile"] == "weights.onnx"
        assert options.TensorLocations.numIOTiles == 64 or (
            options.TensorLocations._values["numIOTiles"] == 64
        )


def test_a_phase_adds_to_a_section():
    common = {"Precision": {"enableStochasticRounding": True}, "partialsType": "half"}
    own = {
        "Precision.enableFloatingPointExceptions": True,
        "partialsType": "float",
    }
    _, training, inference = made({**common, "train_cfg": own})
    assert training.Precision.enable_stochastic_rounding
    assert inference.Precision.enable_stochastic_rounding
    partials = [o._Popart.options["partialsTypeMatMuls"] for o in (training, inference)]
    assert partials == ["float", "half"]


def test_defaults_change_nothing_of_the_hosts_random_stream():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    made({"randomSeed": 3})
    assert torch.equal(torch.get_rng_state(), state)


def test_half_precision_and_accumulation_come_from_the_update_policy():
    policy = UpdatePolicy(precision="fp16", accumulate=4)
    _, training, _ = made({"replicas": 2}, policy)
    assert training.Training.gradient_accumulation == 4
    assert training.Training.auto_loss_scaling is True
    assert training.replication_factor == 2
    assert training.broadcast_buffers is False
    assert training.Precision.enable_stochastic_rounding is True


REFUSED = {
    "unknown option": ({"deviceIteration": 2}, "did you mean 'deviceIterations'"),
    "unknown in a section": (
        {"Training": {"gradientAcumulation": 2}},
        "did you mean 'gradientAccumulation'",
    ),
    "a device by number": ({"index": 1}, "has no option 'index'"),
    "section that is no dict": ({"Precision": 1}, "must be a dict of its options"),
    "option in a phase": (
        {"train_cfg": {"enableStochasticRoundin": 1}},
        "has no option 'enableStochasticRoundin'",
    ),
    "no replicas": ({"replicas": 0}, "replicas must be 1 or more, got 0"),
    "true replicas": ({"replicas": True}, "replicas must be 1 or more, got True"),
    "no replication": ({"replicationFactor": 0}, "1 or more, got 0"),
    "text for a number": ({"deviceIterations": "two"}, "1 or more, got 'two'"),
    "share above one": (
        {"availableMemoryProportion": [0.3, 7.0]},
        "at most 1 for each IPU, got 7.0 for IPU1",
    ),
    "the setter of PopTorch": (
        {"setAvailableMemoryProportion": 0.3},
        "did you mean 'availableMemoryProportion'",
    ),
    "shares of no IPU": (
        {"availableMemoryProportion": {"ipu 0": 0.3}},
        "have keys IPU0, IPU1, ...: 'ipu 0'",
    ),
    "a share for one IPU of two": (
        {**FULL, "train_cfg": {"availableMemoryProportion": [0.3]}},
        "has 1 values, but the model is on 2 IPUs",
    ),
    "partials": ({"partialsType": "fp61"}, "half or float, got 'fp61'"),
    "strategy": (
        {"train_cfg": {"executionStrategy": "SameAsIPU"}},
        "did you mean 'SameAsIpu'",
    ),
    "output mode": ({"train_cfg": {"outputMode": "Al"}}, "takes an OutputMode"),
    "refused by PopTorch": (
        {"TensorLocations": {"numIOTiles": 7}},
        "PopTorch refuses 7",
    ),
    "replicas twice": (
        {"replicas": 4, "train_cfg": {"replicationFactor": 2}},
        "replicas is 4 and the ipu option replicationFactor is 2",
    ),
    "rounding twice": (
        {"deterministic": True, "Precision": {"enableStochasticRounding": True}},
        "contradict each other",
    ),
    "accumulation in evaluation": (
        {"eval_cfg": {"Training": {"gradientAccumulation": 2}}},
        "Training is not for evaluation",
    ),
    "own key in a phase": ({"eval_cfg": {"replicas": 2}}, "move it out of eval_cfg"),
    "IPUs without a split": ({"num_ipus": 4}, "nothing divides the model"),
    "place of evaluation": ({"evaluate_on": "cpu"}, "must be device or host"),
    "misspelt edges": ({"train_split_edge": []}, "did you mean 'train_split_edges'"),
    "misspelt edges in MMCV's place": (
        {"ipu_model_cfg": {"train_split_edge": []}},
        "did you mean 'train_split_edges'",
    ),
    "said twice": (
        {"randomSeed": 1, "options_cfg": {"randomSeed": 2}},
        "give it once",
    ),
    "several processes": (
        {"Distributed": {"configureProcessId": [0, 2]}},
        "PopTorch counts 2 processes",
    ),
}


@pytest.mark.parametrize(("cfg", "says"), REFUSED.values(), ids=REFUSED)
def test_bad_options_are_one_line(cfg, says):
    before = copy.deepcopy(cfg)
    with pytest.raises(DevrunError) as refusal:
        made(cfg)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert cfg == before


def test_accumulation_said_in_two_places_must_agree():
    cfg = {"Training": {"gradientAccumulation": 4}}
    with pytest.raises(ConfigError, match="cumulative_iters is 2"):
        made(cfg, UpdatePolicy(accumulate=2))
    assert made(cfg, UpdatePolicy(accumulate=4))


def test_mmcvs_sections_mean_the_same():
    mmcv = {
        "options_cfg": {k: v for k, v in FULL.items() if k != "train_split_edges"},
        "ipu_model_cfg": {"train_split_edges": FULL["train_split_edges"]},
    }
    assert parse_settings(mmcv) == parse_settings(FULL)


def test_the_device_is_known_and_asks_for_its_sdk():
    assert "ipu" in resolve_device(ipu()).name
    assert IPUAdapter.unavailable_reason() is not None
