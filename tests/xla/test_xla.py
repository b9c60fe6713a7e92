"""The plug-in of `examples/xla_device` on PyTorch/XLA's CPU: `make test-xla`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_xla", reason="`make test-xla` installs it")
CONFIGS = Path(__file__).parents[2] / "configs"
CONFIG = """
_base_: CONFIGS/digits/resnet8_digits.yaml
model: {stage_blocks: [1], base_channels: 4}
runner: {max_epochs: 2}
checkpoint_config: {interval: 1}
log_config: {interval: 1}
"""
MLP = CONFIG.replace(
    "{stage_blocks: [1], base_channels: 4}",
    "{_delete_: true, type: MLP, in_features: 64, hidden: [32], num_classes: 10}",
)


@pytest.fixture
def devrun(tmp_path):
    """Runs a command with `PJRT_DEVICE=CPU`, with success; what it printed."""

    def run(*words, config=CONFIG, **environment):
        (tmp_path / "config.yaml").write_text(config.replace("CONFIGS", str(CONFIGS)))
        done = subprocess.run(
            [sys.executable, "-m", "devrun", *words],
            cwd=tmp_path,
            env={**os.environ, "PJRT_DEVICE": "CPU", **environment},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def losses(folder):
    (log,) = folder.glob("*.log.json")
    rows = map(json.loads, log.read_text().splitlines())
    return [row["loss"] for row in rows if row.get("mode") == "train"]


FOUR = {"XLA_USE_SPMD": "1", "CPU_NUM_DEVICES": "4"}
"""Of one process."""
TWO = ["--num-devices", "2", "--work-dir", "run"]
"""Processes."""


@pytest.mark.parametrize("devices", [{}, FOUR], ids=["one device", "four devices"])
def test_digits_have_the_losses_of_the_cpu_and_resume_to_the_bit(
    devrun, tmp_path, devices
):
    for name in ("xla", "cpu"):
        devrun("train", "config.yaml", "--device", name, "--work-dir", name, **devices)
    mine, theirs = losses(tmp_path / "xla"), losses(tmp_path / "cpu")
    assert len(mine) == 46 and mine == pytest.approx(theirs, abs=1e-4)  # rounding

    again = ["--device", "xla", "--work-dir", "rest", "--resume-from"]
    devrun("train", "config.yaml", *again, "xla/checkpoints/step-00000023", **devices)
    ends = [tmp_path / run / "checkpoints/step-00000046" for run in ("xla", "rest")]
    for name in ("model.safetensors", "optimizer.safetensors", "rng-rank00000.json"):
        one, other = [(end / name).read_bytes() for end in ends]
        assert one == other, name


def test_compare_finds_rounding_alone(devrun):
    words = ["compare", "config.yaml", "--devices", "cpu,xla", "--steps", "5"]
    assert "they agree" in devrun(*words, config=MLP)


def test_each_of_four_devices_has_a_quarter_of_a_batch(tmp_path):
    program = """
import torch, torch_xla
from devrun.devices import resolve_device
adapter = resolve_device("xla")
adapter.setup(0)
print(torch_xla._XLAC._get_xla_sharding_spec(adapter.to_device(torch.zeros(8, 3))))
"""
    env = {**os.environ, "PJRT_DEVICE": "CPU", **FOUR}
    said = subprocess.check_output([sys.executable, "-c", program], env=env, text=True)
    assert said == "{devices=[4,1]0,1,2,3}\n"


def test_several_processes_are_refused_in_one_line(tmp_path):
    config = CONFIGS / "digits/resnet8_digits.yaml"
    done = subprocess.run(
        [*f"{sys.executable} -m devrun train {config} --device xla".split(), *TWO],
        cwd=tmp_path,
        env={**os.environ, "PJRT_DEVICE": "CPU"},
        capture_output=True,
        text=True,
    )
    (said,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert done.returncode == 2 and "an XLA run is one process" in said


def test_check_tells_its_counters(devrun):
    (device,) = json.loads(devrun("check", "config.yaml", "--device", "xla", "--json"))[
        "devices"
    ]
    # the shapes of an update, an evaluation and a short batch, and what a save reads
    assert 2 < device["facts"]["graphs"] < 20
    assert device["facts"]["transfers"] > device["facts"]["graphs"]
    assert device["findings"] == []


def test_the_adapter_conforms(devrun):
    assert "FAILS 0" in devrun("devices", "--conformance", "xla")
