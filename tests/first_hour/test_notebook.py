"""A notebook: the bar redraws, a runner shows its curve and its metrics."""

import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from torch import nn, optim
from torch.utils.data import DataLoader

from devrun import EpochBasedRunner
from devrun.data.datasets.synthetic import SyntheticClassification
from devrun.hooks import EvalHook

CELLS = (
    """
from torch import nn, optim
from torch.utils.data import DataLoader
from devrun import EpochBasedRunner
from devrun.data.datasets.synthetic import SyntheticClassification
from devrun.hooks import ProgressHook
loader = DataLoader(SyntheticClassification(64), 8)
model = nn.Linear(16, 4)
runner = EpochBasedRunner(model, optimizer=optim.SGD(model.parameters(), 0.1),
    loss=nn.CrossEntropyLoss(), work_dir="out", max_epochs=2, device="cpu")
log = {"interval": 2, "hooks": [{"type": "TextLoggerHook"}]}
runner.register_training_hooks(log_config=log)
runner.register_hook(ProgressHook())
runner.run([loader], [("train", 1)])
""",
    "runner",
)


def trained(work_dir):
    """A run of two epochs that evaluates its accuracy."""
    data = SyntheticClassification(64)
    model = nn.Linear(16, 4)
    run = EpochBasedRunner(
        model,
        optimizer=optim.SGD(model.parameters(), 0.1),
        loss=nn.CrossEntropyLoss(),
        work_dir=work_dir,
        max_epochs=2,
        device="cpu",
    )
    log = {"interval": 2, "hooks": [{"type": "TextLoggerHook"}]}
    run.register_training_hooks(log_config=log)
    evaluation = EvalHook(DataLoader(data, 8), metric="accuracy")
    run.register_hook(evaluation)
    run.run([DataLoader(data, 8)], [("train", 1)])
    return run


def test_a_runner_shows_its_curve_and_its_metrics(tmp_path):
    shown = trained(tmp_path)._repr_html_()
    page = ElementTree.fromstring(f"<div>{shown}</div>")
    (line,) = page.iter("polyline")
    assert len(line.get("points").split()) == 8  # 16 updates, a line of every second
    rows = [[cell.text for cell in row] for row in page.iter("tr")]
    assert rows[0][0] == "update"
    assert [row[0] for row in rows[1:]] == ["8", "16"]
    assert re.fullmatch(r"[01]\.\d{4}", rows[2][rows[0].index("accuracy")])


def test_without_a_work_dir_it_says_how_far_it_is():
    model = nn.Linear(2, 2)
    run = EpochBasedRunner(model, max_epochs=1, device="cpu")
    assert run._repr_html_() == (
        "<p>&lt;EpochBasedRunner: Linear on cpu, 0 epochs and 0 updates done&gt;</p>"
    )


@pytest.mark.slow
def test_a_notebook_has_a_bar_and_the_curve(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    import nbformat

    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((root, *os.sys.path)))
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    nbclient.NotebookClient(
        book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    first, second = (cell.outputs for cell in book.cells)
    text = "".join(out.get("text", "") for out in first)
    assert re.search(r"\repoch 2/2: 100%.*16/16", text)
    (shown,) = [out.data["text/html"] for out in second]
    assert "<polyline" in shown
