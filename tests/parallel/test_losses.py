"""The table of benchmarks/RESULTS.md, at fewer updates."""

from pathlib import Path

import pytest

from tests.support import zygote

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "parallel_losses.py"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt", "vit", "resnet"])
def test_each_strategy_on_up_to_four_processes_has_the_losses_of_one(model):
    done = zygote.run([PROGRAM, "--models", model, "--updates", "10"], timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("| yes |") == {"gpt": 36, "vit": 8, "resnet": 28}[model]
