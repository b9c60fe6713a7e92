"""Checkpoints of the present format, as they were written.

A release with a new format puts its own in their place:
`train(run(2)).save_checkpoint("whole")`, called in `museum`. (In `pieces` the weights
and the state of the optimizer are in those of two processes.)
"""

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from devrun.checkpoint.manifest import SCHEMA
from devrun.errors import CheckpointError
from devrun.hooks import EMAHook
from devrun.runners import IterBasedRunner

MUSEUM = Path(__file__).with_name("museum")
WEIGHT = [
    [0.11235691606998444, 0.11241905391216278],
    [0.3869556784629822, 0.38689354062080383],
]
BIAS = [0.009301707148551941, -0.009301707148551941]
"""What the run that wrote them printed, to the last bit."""


def run(limit, **options):
    """A run of `limit` updates that has not begun."""
    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, 0.25), nn.init.zeros_(model.bias)
    runner = IterBasedRunner(
        model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.125),
        loss=nn.CrossEntropyLoss(), device="cpu", seed=5, max_iters=limit,
        **options,
    )  # fmt: skip
    runner.register_lr_hook({"policy": "step", "step": [1], "by_epoch": False})
    runner.register_hook(EMAHook(momentum=0.5))
    return runner


def train(runner):
    inputs = torch.linspace(-1, 2, 16).view(8, 2)
    data = TensorDataset(inputs, torch.arange(8) % 2)
    runner.run([DataLoader(data, batch_size=2, shuffle=True)], [("train", 1)])
    return runner


def exhibit(kind):
    (path,) = (MUSEUM / kind).glob("step-*")
    return path


@pytest.mark.parametrize("kind", ["whole", "pieces"])
def test_a_run_goes_on_from_it(kind):
    runner = run(4)
    runner.resume(exhibit(kind))
    assert runner.iter == 2
    assert runner.model.weight.tolist() == WEIGHT
    assert runner.model.bias.tolist() == BIAS
    state = runner.optimizer.state_dict()
    assert [state["state"][n]["step"].item() for n in (0, 1)] == [2, 2]
    train(runner)
    assert runner.iter == 4
    whole = train(run(4))
    torch.testing.assert_close(runner.model.state_dict(), whole.model.state_dict())


@pytest.mark.parametrize("other", [SCHEMA - 1, SCHEMA + 1])
def test_one_of_another_format_is_refused_by_its_version(other, tmp_path):
    """By its path, and by `auto`, which starts no new run over it either."""
    path = tmp_path / "checkpoints" / "step-00000002"
    shutil.copytree(exhibit("whole"), path)
    manifest = path / "MANIFEST.json"
    changed = manifest.read_text().replace(f'"schema": {SCHEMA}', f'"schema": {other}')
    manifest.write_text(changed.replace('"writer": "devrun ', '"writer": "devrun 9.'))
    for given in (path, "auto"):
        with pytest.raises(CheckpointError) as caught:
            run(4, work_dir=tmp_path).resume(given)
        assert "written by 'devrun 9." in str(caught.value)
        assert f"in format {other}" in str(caught.value)
        assert "use the one that wrote it" in str(caught.value)
