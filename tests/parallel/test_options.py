"""The section `parallel`: where it may stand, and what it refuses, in one process."""

from types import SimpleNamespace

import pytest
import torch

from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.parallel.mesh import Mesh
from devrun.parallel.options import ParallelOptions
from devrun.parallel.strategy import strategy_for
from devrun.runners import EpochBasedRunner
from tests.parallel.worker import gpt, train
from tests.support.command import command

CONFIG = """\
model: {type: MLP, in_features: 16, hidden: [8], num_classes: 4}
loss: {type: CrossEntropyLoss}
data: {samples_per_gpu: 8, train: {type: SyntheticClassification, num_samples: 32}}
optimizer: {type: SGD, lr: 0.1}
runner: {type: EpochBasedRunner, max_epochs: 1}
device: cpu
"""


def fitted(section, world):
    return ParallelOptions.parse(section).fitted(world)


@pytest.mark.parametrize(
    ("section", "world", "kind", "sizes"),
    [
        (None, 1, "none", (1, 1, 1)),
        (None, 4, "ddp", (4, 1, 1)),
        ({"type": "fsdp"}, 1, "none", (1, 1, 1)),
        ({"type": "fsdp"}, 4, "fsdp", (1, 4, 1)),
        ({"type": "fsdp", "mesh": {"replicate": 2}}, 4, "fsdp", (2, 2, 1)),
        ({"mesh": {"shard": 2}}, 4, "fsdp", (2, 2, 1)),
        ({"mesh": {"tensor": 2}}, 2, "none", (1, 1, 2)),
        ({"mesh": {"tensor": 2}}, 4, "fsdp", (1, 2, 2)),
        ({"wrap": ["Block"]}, 2, "fsdp", (1, 2, 1)),
    ],
)
def test_what_is_left_open_fits_the_processes(section, world, kind, sizes):
    found, mesh = fitted(section, world)
    assert found == kind
    assert tuple(mesh[name] for name in ("replicate", "shard", "tensor")) == sizes


@pytest.mark.parametrize(
    ("section", "world", "words"),
    [
        (
            {"mesh": {"pipeline": 2}},
            2,
            "parallel.mesh.pipeline: unknown key; known: replicate",
        ),
        ({"mesh": {"tensor": 2}}, 1, "a multiple of 2 processes, there is 1"),
        ({"mesh": {"replicate": 2, "shard": 4}}, 4, "for 8 processes, there are 4"),
        ({"type": "fdsp"}, 2, "type must be one of ddp, fsdp, none, got 'fdsp'"),
        ({"plan": {"h.*": "colwise"}, "type": "ddp"}, 2, "plan is for type fsdp or"),
        (
            {"mesh": {"shard": 0}},
            2,
            "parallel.mesh.shard: takes an integer of at least 1",
        ),
        ({"offload": "yes"}, 2, "parallel.offload: takes true or false"),
        ({"wrap": {"min_param": 3}}, 2, "parallel.wrap: takes text or a list"),
        ({"reshard": 1}, 2, "parallel.reshard: takes true or false, not 1"),
        ({"wrap": ["Block"], "bucket_cap_mb": 1}, 2, "bucket_cap_mb is for type ddp"),
    ],
)
def test_what_does_not_fit_is_one_line(section, world, words):
    with pytest.raises(ConfigError) as caught:
        fitted(section, world)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "parallel: {type: fsdp, static_graph: true}",
            "parallel.static_graph: is for type ddp; type fsdp cannot honour it",
        ),
        ("parallel: {reshard: 1}", "parallel.reshard: takes true or false, not 1"),
        (
            "parallel: {mesh: {tensor: 2}}",
            "parallel.mesh: {tensor: 2} is for a multiple of 2 processes, there is 1",
        ),
        ("parallel: {wrapp: [Block]}", "parallel.wrapp: unknown key; did you mean"),
        (
            "parallel: {mesh: {shard: 0}}",
            "parallel.mesh.shard: takes an integer of at least 1, not 0",
        ),
        (
            "cpu: {find_unused_parameters: true}",
            "it belongs to parallel: {find_unused_parameters: true}",
        ),
    ],
)
def test_a_config_is_told_the_line(tmp_path, capsys, line, words):
    path = tmp_path / "small.yaml"
    path.write_text(CONFIG + line)
    status, _, said = command(capsys, "train", str(path), "--work-dir", str(tmp_path))
    assert status == 2
    assert f"small.yaml:{CONFIG.count(chr(10)) + 1}" in said
    assert words in said


def test_one_process_trains_as_without_the_section():
    assert train({"type": "fsdp", "wrap": ["Block"]}) == train()


def test_an_ipu_refuses_before_the_first_step():
    optimizer = torch.optim.SGD(gpt().parameters(), lr=0.1)
    with pytest.raises(UnsupportedFeatureError, match="divides the work by itself"):
        EpochBasedRunner(
            gpt(),
            optimizer=optimizer,
            device={"type": "ipu", "emulate": True},
            parallel={"type": "fsdp"},
            max_epochs=1,
        )


@pytest.mark.parametrize("sizes", [("fsdp", 1), ("none", 2)])
def test_an_old_torch_divides_no_weights(sizes, monkeypatch):
    monkeypatch.setattr("devrun.torch_features.VERSION", "2.8.0")
    mesh = SimpleNamespace(**dict(zip(("type", "tensor_size"), sizes)))
    with pytest.raises(UnsupportedFeatureError, match="weights .* needs torch 2.9 or"):
        strategy_for(ParallelOptions(), mesh)


def test_alone_every_process_reads_everything():
    mesh = Mesh()
    assert (mesh.data_rank, mesh.data_size, mesh.tells_results) == (0, 1, True)
