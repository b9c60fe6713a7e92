"""The shipped models on Modular's device: what it lacks, and that they train."""

import json
import re

import pytest

from tests.mojo.runs import HERE, devrun_in, losses
from tests.support.shipped import CASES

pytest.importorskip("torch_mojo_backend", reason="`make test-mojo` installs it")
pytestmark = pytest.mark.mojo
TABLE = HERE.parents[1] / "benchmarks" / "MOJO.md"
FALLBACK = {"type": "mojo", "fallback": "cpu"}


@pytest.fixture(params=["mlp", "resnet8", "vit", "gpt"])
def devrun(request, tmp_path):
    """Runs a command on a small one of the shipped models, on that device."""
    model, data = CASES[request.param]
    (tmp_path / "text.txt").write_text("all that is gold does not glitter\n" * 20)
    cfg = {
        "model": model,
        "loss": None if request.param == "gpt" else {"type": "CrossEntropyLoss"},
        "data": {"samples_per_gpu": 4, "train": data, "val": data},
        "optimizer": {"type": "SGD", "lr": 0.1, "foreach": False},
        "runner": {"type": "IterBasedRunner", "max_iters": 4},
        "evaluation": {"interval": 4, "by_epoch": False},
        "checkpoint_config": {"interval": 4},
        "log_config": {"interval": 1, "hooks": [{"type": "TextLoggerHook"}]},
        "seed": 1,
    }

    def run(command, *words, device=None):
        text = json.dumps({**cfg, **({"device": device} if device else {})})
        (tmp_path / "config.json").write_text(text)
        return devrun_in(tmp_path, command, "config.json", *words)

    run.case = request.param
    return run


def test_check_names_all_that_has_no_kernel(devrun):
    # kernels are compiled at their first use, for half an hour and more
    done = devrun("check", "--device", "mojo", "--timeout", "3600")
    assert done.returncode == 11, done.stderr
    missing = sorted(set(re.findall(r"no kernel: aten::(\w+)", done.stdout)))
    assert f"\n| {devrun.case} | {', '.join(missing)} |\n" in TABLE.read_text()


def test_with_the_host_beside_it_each_has_the_losses_of_the_cpu(devrun, tmp_path):
    for name, device in (("mojo", FALLBACK), ("cpu", "cpu")):
        done = devrun("train", "--work-dir", name, device=device)
        assert done.returncode == 0, done.stderr
    mine, theirs = losses(tmp_path / "mojo"), losses(tmp_path / "cpu")
    # float32 sums in another order, and the log has five decimals
    assert len(mine) == 4 and mine == pytest.approx(theirs, abs=2e-5)
