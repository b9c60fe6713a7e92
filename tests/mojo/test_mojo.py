"""Modular's device and its compiler, for real: `make test-mojo`.

Without a GPU the device is the CPU. Kernels are compiled at their first use and kept in
the environment: the first run takes many minutes.
"""

import re

import pytest

from tests.mojo.runs import devrun_in, losses

pytest.importorskip("torch_mojo_backend", reason="`make test-mojo` installs it")
pytestmark = pytest.mark.mojo
CONFIG = """
model: {type: soft_targets.MODEL}
loss: {type: CrossEntropyLoss}
optimizer: {type: SGD, lr: 0.1, momentum: 0.9, foreach: false}
data: {samples_per_gpu: 8, train: {type: soft_targets.Soft}, val: {type: soft_targets.Soft}}
runner: {type: EpochBasedRunner, max_epochs: 2}
evaluation: {interval: 1}
checkpoint_config: {interval: 1}
log_config: {interval: 1, hooks: [{type: TextLoggerHook}]}
seed: 1
device: DEVICE
"""  # noqa: E501
MAX = "torch_mojo_backend.mojo_backend"


@pytest.fixture
def devrun(tmp_path):
    """Runs a command on the config with that device and model."""

    def run(command, *words, device="cpu", model="MLP"):
        text = CONFIG.replace("DEVICE", device).replace("MODEL", model)
        (tmp_path / "config.yaml").write_text(text)
        return devrun_in(tmp_path, command, "config.yaml", *words)

    return run


FALLBACK = "{type: mojo, fallback: cpu}"


def test_an_mlp_has_the_losses_of_the_cpu_and_resumes_to_the_bit(devrun, tmp_path):
    for name, device in (("mojo", FALLBACK), ("cpu", "cpu")):
        done = devrun("train", "--work-dir", name, device=device)
        assert done.returncode == 0, done.stderr
    mine, theirs = losses(tmp_path / "mojo"), losses(tmp_path / "cpu")
    assert len(mine) == 8 and mine == pytest.approx(theirs, abs=1e-5)

    first = "mojo/checkpoints/step-00000004"
    words = ["--work-dir", "rest", "--resume-from", first]
    assert devrun("train", *words, device=FALLBACK).returncode == 0
    for name in ("model", "optimizer", "rng-rank00000"):
        files = [
            tmp_path / run / "checkpoints/step-00000008" / f"{name}.safetensors"
            for run in ("mojo", "rest")
        ]
        assert files[0].read_bytes() == files[1].read_bytes()
    done = devrun(
        "test", "mojo/checkpoints/step-00000008", "--split", "val", device=FALLBACK
    )
    assert done.returncode == 0, done.stderr


def test_compare_finds_rounding_alone(devrun):
    done = devrun("compare", "--devices", "cpu,mojo", device=FALLBACK)
    assert done.returncode == 0 and "they agree" in done.stdout, done.stdout


def test_what_has_no_kernel_is_one_line_and_in_check(devrun):
    done = devrun("train", "--work-dir", "run", device="mojo")
    assert done.returncode == 9
    said = "devrun: error: device 'mojo' has no kernel for aten::threshold_backward"
    assert done.stderr.splitlines()[-1].startswith(said)
    done = devrun("check", "--device", "mojo", "--timeout", "3600")
    assert done.returncode == 11
    assert re.findall("no kernel: (.+)", done.stdout) == ["aten::threshold_backward"]


def test_modulars_compiler_adds_its_rounding_and_devrun_nothing(devrun, tmp_path):
    compiled = f"{{type: cpu, compile: {{backend: {MAX}}}}}"
    runs = {
        "compiled": (compiled, "MLP"),
        "by hand": ("cpu", "CompiledMLP"),
        "plain": ("cpu", "MLP"),
    }
    for name, (device, model) in runs.items():
        words = ["--work-dir", name, "--allow-factory", MAX]
        done = devrun("train", *words, device=device, model=model)
        assert done.returncode == 0, done.stderr
    mine, by_hand, plain = (losses(tmp_path / name) for name in runs)
    # its sums have another order: units in the last place, of which the log has fewer
    assert len(mine) == 8 and mine == pytest.approx(plain, abs=1e-5)
    assert mine == by_hand
    ends = [tmp_path / name / "checkpoints/step-00000008" for name in runs]
    weights = [(end / "model.safetensors").read_bytes() for end in ends[:2]]
    assert weights[0] == weights[1]


def test_what_it_cannot_compile_is_one_line_or_runs_uncompiled(devrun):
    words = ["--work-dir", "run", "--allow-factory", MAX]
    compiled = f"{{type: cpu, compile: {{backend: {MAX}}}}}"
    done = devrun("train", *words, device=compiled, model="Convolving")
    assert done.returncode == 2
    assert f"backend '{MAX}' cannot compile Convolving" in done.stderr.splitlines()[-1]
    lenient = compiled.replace("}}", ", fallback: eager}}")
    done = devrun("train", *words, device=lenient, model="Convolving")
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count("runs uncompiled") == 1
