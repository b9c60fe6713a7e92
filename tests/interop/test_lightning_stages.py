"""A LightningModule in `devrun test`, by its test_step, and in several processes."""

import json
import sys
from pathlib import Path

import pytest

from devrun.cli.main import main
from tests.support import zygote
from tests.support.packages import let_torchvision_load

WORKER = Path(__file__).with_name("lightning_worker.py")
MODULE = """
import lightning, torch
from torch.utils.data import DataLoader, TensorDataset

CALLS = []

class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 2)

    def setup(self, stage):
        CALLS.append(f"setup {stage}")

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        CALLS.append("validation_step")
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

class Tested(Lit):
    def on_test_start(self):
        CALLS.append(f"start {self.trainer.testing} {self.trainer.validating}")

    def on_test_epoch_start(self):
        CALLS.append("epoch_start")

    def on_test_batch_start(self, batch, batch_idx):
        CALLS.append(f"batch_start {batch_idx}")

    def test_step(self, batch, batch_idx):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("test_loss", loss)
        self.log("test_size", float(len(batch[0])))
        return {"logits": self.net(batch[0])}

    def on_test_batch_end(self, outputs, batch, batch_idx):
        CALLS.append(f"batch_end {batch_idx}")

    def on_test_epoch_end(self):
        CALLS.append("epoch_end")
        self.log("test_end", 3.0)

    def on_test_end(self):
        CALLS.append("end")

def rows(size):
    return TensorDataset(torch.randn(size, 4), torch.ones(size).long())

class Data(lightning.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(rows(8), 4)

    def val_dataloader(self):
        return DataLoader(rows(6), 6)

    def test_dataloader(self):
        return DataLoader(rows(10), 5)

class Rows(torch.utils.data.Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.full((4,), index / 10), index % 2
"""
CONFIG = """
model: {type: lit_stages.KIND}
data: DATA
runner: {type: EpochBasedRunner, max_epochs: 1}
checkpoint_config: {interval: 1}
"""
DATA = {
    "module": "{type: lit_stages.Data}",
    "sets": """
  samples_per_gpu: 5
  train: {type: lit_stages.Rows, size: 8}
  val: {type: lit_stages.Rows, size: 6}
  test: {type: lit_stages.Rows, size: 10}
""",
}


@pytest.fixture
def lit_stages(tmp_path, monkeypatch):
    """Trains a model of this kind on this data; gives what tests it, and its calls."""
    let_torchvision_load()
    pytest.importorskip("lightning", reason="the package lightning is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("lit_stages.py").write_text(MODULE)

    def trained(kind, data):
        text = CONFIG.replace("KIND", kind).replace("DATA", DATA[data])
        Path("own.yaml").write_text(text)
        words = ["own.yaml", "--import", "lit_stages"]
        again = ["--device", "cpu", "--work-dir", "out", "--overwrite"]
        assert main(["train", *words, *again]) == 0
        calls = sys.modules["lit_stages"].CALLS
        calls.clear()

        def tested(*flags):
            device = [] if "--device" in flags else ["--device", "cpu"]
            return main(["test", words[0], "out", *words[1:], *device, *flags])

        return tested, calls

    yield trained
    sys.modules.pop("lit_stages", None)


@pytest.mark.parametrize("data", DATA)
def test_the_test_step_judges_the_test_data(lit_stages, data, capsys):
    tested, calls = lit_stages("Tested", data)
    assert tested("--out", "found.json") == 0
    found = json.loads(Path("found.json").read_text())["results"]
    assert found.keys() == {"test_loss", "test_size", "test_end"}
    assert found["test_size"] == 5.0 and found["test_end"] == 3.0
    assert calls == [
        *("setup test", "start True False", "epoch_start"),
        *("batch_start 0", "batch_end 0", "batch_start 1", "batch_end 1"),
        *("epoch_end", "end"),
    ]


def test_the_validation_step_judges_what_has_no_test_step_and_the_split_val(lit_stages):
    tested, calls = lit_stages("Lit", "sets")
    assert tested() == 0 and calls == ["setup test", *["validation_step"] * 2]
    tested, calls = lit_stages("Tested", "sets")
    assert tested("--split", "val") == 0
    assert calls == ["setup validate", *["validation_step"] * 2]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What two processes of the worker saw, by rank."""
    let_torchvision_load()
    pytest.importorskip("lightning", reason="the package lightning is not installed")
    folder = tmp_path_factory.mktemp("ranks")
    running = zygote.start_ranks([WORKER, folder], cwd=folder)
    said = [process.communicate(timeout=300)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], "\n".join(said)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_two_processes_train_as_one_with_the_doubled_batch(ranks):
    from tests.interop.lightning_worker import trained

    alone = trained(8)
    for found in ranks:
        assert found["weights"] == pytest.approx(alone["weights"], rel=1e-5)
        for name in ("val_loss", "seen"):
            mean = alone["results"][name]
            assert found["results"][name] == pytest.approx(mean, rel=1e-5)
        assert found["results"]["rank"] == 0.5
    assert [found["place"] for found in ranks] == [[0, 0, 2], [1, 1, 2]]
    assert [found["main"] for found in ranks] == [True, False]
    assert alone["place"] == [0, 0, 1]
