"""A LightningModule trains without Lightning's Trainer, on every device alike."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from devrun import EpochBasedRunner, Hook
from devrun.cli.main import main
from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.hooks import EvalHook
from tests.support.packages import let_torchvision_load
from tests.support.strict import zip_strict

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIG = str(EXAMPLES / "lightning_digits.yaml")


@pytest.fixture(scope="module")
def L():
    let_torchvision_load()
    return pytest.importorskip("lightning")


@pytest.fixture(scope="module")
def lit(L):
    """The class of a small model; what a test wants otherwise it overrides."""

    class Lit(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2))

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, batch_idx):
            loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
            self.log("seen", loss, on_epoch=True)
            return loss

        def validation_step(self, batch, batch_idx):
            scores = self(batch[0])
            self.log("val_loss", nn.functional.cross_entropy(scores, batch[1]))
            self.log("val_acc", (scores.argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Lit


def data(size=24):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, 4, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def trained(model, device="cpu", *, epochs=2, kind=EpochBasedRunner, **kwargs):
    """The runner after a run, with the records of its log as `records`."""
    evaluation = kwargs.pop("evaluation", {})
    runner = made(model, device, epochs=epochs, kind=kind, **kwargs)
    if evaluation is not None:
        loader = DataLoader(data(), batch_size=8)
        by_epoch = kind is EpochBasedRunner
        runner.register_hook(EvalHook(loader, by_epoch=by_epoch, **evaluation))
    runner.run([DataLoader(data(), batch_size=8, shuffle=True)], [("train", 1)])
    runner.session.sync_to_host()
    runner.close()
    return runner


def made(model, device="cpu", *, epochs=2, kind=EpochBasedRunner, **kwargs):
    limit = {"max_epochs": epochs} if kind is EpochBasedRunner else {"max_iters": 6}
    spec = {"type": device, **({} if device == "cpu" else {"emulate": True})}
    runner = kind(model, device=spec, seed=0, **limit, **kwargs)
    log = {"interval": 1, "hooks": [{"type": "TextLoggerHook"}]}
    saved = {"interval": 1} if runner.work_dir else None
    runner.register_training_hooks(None, checkpoint_config=saved, log_config=log)
    return runner


def records(folder):
    (log,) = sorted(Path(folder).glob("*.log.json"))[-1:]
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return [row for row in rows if "mode" in row]


def weights(model):
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


def test_the_example_trains_from_a_config_and_is_evaluated(L, tmp_path, capsys):
    pytest.importorskip("sklearn")
    words = ["--import", "lightning_digits", "--device", "cpu"]
    assert main(["train", CONFIG, *words, "--work-dir", str(tmp_path)]) == 0
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["best"]["score"] > 0.9
    assert "val_acc" in facts["best"]["checkpoint"]
    rates = [row["lr"] for row in records(tmp_path) if row["mode"] == "train"]
    assert rates[0] == 0.01 and rates[-1] < 0.001  # by the model's own scheduler
    last = [row for row in records(tmp_path) if row["mode"] == "val"][-1]
    capsys.readouterr()
    test = ["test", CONFIG, str(tmp_path), "--split", "val", *words]
    assert main(test) == 0
    assert f"val_acc {last['val_acc']:.4f}" in capsys.readouterr().out
    assert main(["test", CONFIG, str(tmp_path), *words]) == 2
    assert "Digits has no test_dataloader" in capsys.readouterr().err


def test_an_emulated_ipu_gives_the_losses_of_the_cpu(lit, tmp_path):
    found = {}
    for name in ("cpu", "ipu"):
        torch.manual_seed(1)
        model = lit()
        model.net[1].p = 0.0  # whose random stream is the device's own
        trained(model, name, work_dir=tmp_path / name)
        found[name] = records(tmp_path / name)
    rows = list(zip_strict(found["cpu"], found["ipu"]))
    assert len(rows) == 8
    for mine, theirs in rows:
        for key in ("seen", "loss", "val_loss", "val_acc", "seen_epoch"):
            assert (key in mine) == (key in theirs)
            assert mine.get(key, 0) == pytest.approx(theirs.get(key, 0), rel=1e-5)


class Cut(Hook):
    priority = 100

    def after_train_iter(self, runner):
        if runner.iter == 3:
            runner.save_checkpoint(name="middle")
            runner.request_stop("enough")


def test_a_resumed_run_ends_with_the_same_bits(lit, tmp_path):
    class Scheduled(lit):
        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, 0.1, total_steps=6
            )
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

        def on_save_checkpoint(self, checkpoint):
            checkpoint["mine"] = self.global_step

        def on_load_checkpoint(self, checkpoint):
            self.loaded = checkpoint["mine"]

    def run(name, *hooks, resume=None):
        torch.manual_seed(1)
        runner = made(Scheduled(), work_dir=tmp_path / name)
        for hook in (EvalHook(DataLoader(data(), batch_size=8)), *hooks):
            runner.register_hook(hook)
        if resume is not None:
            runner.resume(resume)
        runner.run([DataLoader(data(), batch_size=8, shuffle=True)], [("train", 1)])
        return runner.model

    whole = run("whole")
    run("cut", Cut())
    again = run("again", resume=tmp_path / "cut" / "checkpoints" / "middle")
    assert again.loaded == 3
    assert torch.equal(weights(again), weights(whole))
    mine, theirs = records(tmp_path / "again"), records(tmp_path / "whole")
    assert mine[-1]["seen_epoch"] == theirs[-1]["seen_epoch"]
    assert [r["lr"] for r in mine][-2:] == [r["lr"] for r in theirs][-2:]


def test_its_hooks_are_called_in_their_order_with_the_facts_of_the_run(lit):
    class Noting(lit):
        def note(self, name):
            self.notes.append((name, self.current_epoch, self.global_step))

        def setup(self, stage):
            self.notes = [("setup", stage, str(self.device))]

        def on_train_batch_start(self, batch, batch_idx):
            assert batch_idx == self.global_step % 3 and len(batch) == 2

        def on_train_batch_end(self, outputs, batch, batch_idx):
            assert outputs["loss"].dim() == 0
            self.log("twice", 2 * outputs["loss"])

        def on_after_backward(self):
            assert self.net[0].weight.grad is not None

        def on_train_epoch_end(self):
            self.note("on_train_epoch_end")
            assert "val_loss" in self.trainer.callback_metrics
            self.trainer.should_stop = self.current_epoch == 1

    for name in (
        *("on_fit_start", "on_train_start", "on_train_epoch_start", "on_fit_end"),
        *("on_validation_epoch_start", "on_validation_epoch_end", "on_train_end"),
    ):
        setattr(Noting, name, lambda self, name=name: self.note(name))
    runner = trained(Noting(), epochs=3)
    assert runner.model.notes == [
        ("setup", "fit", "cpu"),
        ("on_fit_start", 0, 0),
        ("on_train_start", 0, 0),
        *(
            (name, epoch, 3 * epoch + (name != "on_train_epoch_start") * 3)
            for epoch in range(2)
            for name in (
                "on_train_epoch_start",
                "on_validation_epoch_start",
                "on_validation_epoch_end",
                "on_train_epoch_end",
            )
        ),
        ("on_train_end", 2, 6),
        ("on_fit_end", 2, 6),
    ]
    assert runner.log_buffer.means()["twice"] > 0
    assert runner.model.trainer.world_size == 1


def test_what_it_collects_or_keeps_in_a_metric_is_a_result(lit):
    torchmetrics = pytest.importorskip("torchmetrics")

    class Collecting(lit):
        def __init__(self):
            super().__init__()
            self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=2)
            self.outputs = []

        def validation_step(self, batch, batch_idx):
            scores = self(batch[0])
            self.accuracy(scores, batch[1])
            self.log("acc", self.accuracy)
            self.log("mean", scores.mean(), batch_size=len(scores))
            self.outputs.append(scores)

        def on_validation_epoch_end(self):
            self.log("seen", float(len(torch.cat(self.outputs))))
            self.outputs.clear()

    found = []

    class Noting(EvalHook):
        def evaluate(self, runner, results):
            found.append(results)
            return super().evaluate(runner, results)

    model = Collecting()
    runner = made(model)
    runner.register_hook(Noting(DataLoader(data(), batch_size=7), save_best=None))
    runner.run([DataLoader(data(), batch_size=8)], [("train", 1)])
    with torch.no_grad():
        scores = model.eval()(data().tensors[0])
    right = (scores.argmax(1) == data().tensors[1]).float().mean()
    assert [set(one) for one in found] == [{"acc", "mean", "seen"}] * 2
    assert found[-1]["seen"] == 24
    assert found[-1]["acc"] == pytest.approx(right.item())
    assert found[-1]["mean"] == pytest.approx(scores.mean().item(), rel=1e-5)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=1.0)


def steps(optimizer, size=1):
    return torch.optim.lr_scheduler.StepLR(optimizer, size, 0.5)


def plateau(optimizer):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)


FORMS = {
    "one": (lambda o: o, [1, 1, 1]),
    "a list": (lambda o: [o], [1, 1, 1]),
    "two lists": (lambda o: ([o], [steps(o)]), [1, 0.5, 0.25]),
    "a dict": (lambda o: {"optimizer": o, "lr_scheduler": steps(o)}, [1, 0.5, 0.25]),
    "every second epoch": (
        lambda o: ([o], [{"scheduler": steps(o), "frequency": 2}]),
        [1, 1, 0.5],
    ),
    "every third update": (
        lambda o: (
            [o],
            [{"scheduler": steps(o), "interval": "step", "frequency": 3}],
        ),
        [1, 0.5, 0.25],
    ),
    "two schedulers": (lambda o: ([o], [steps(o), steps(o)]), [1, 0.25, 0.0625]),
    "a plateau": (
        lambda o: {
            "optimizer": o,
            "lr_scheduler": {"scheduler": plateau(o), "monitor": "worse"},
        },
        [1, 1, 0.5],
    ),
}


@pytest.mark.parametrize(
    ("form", "device"),
    [*((form, "cpu") for form in FORMS), ("a dict", "ipu"), ("a plateau", "ipu")],
)
def test_every_form_of_configure_optimizers_sets_the_rate(lit, form, device):
    make, expected = FORMS[form]
    rates = []

    class Configured(lit):
        def configure_optimizers(self):
            return make(sgd(self))

        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            self.log("worse", self.net[0].weight.sum() * 0 + 1)

        def on_train_epoch_end(self):
            rates.append(self.optimizers().param_groups[0]["lr"])

    trained(Configured(), device, epochs=3)
    assert rates == expected


NOTHING = "configure_optimizers of Lit must give a torch.optim.Optimizer"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda o: None, NOTHING),
        (lambda o: "adam", NOTHING),
        (lambda o: [o, o], "gives 2 optimizers, which takes manual optimization"),
        (
            lambda o: ([o], [{"scheduler": steps(o), "intervall": "step"}]),
            "did you mean 'interval'",
        ),
        (
            lambda o: ([o], [{"scheduler": steps(o), "interval": "week"}]),
            "one of epoch",
        ),
        (lambda o: ([o], [{"scheduler": steps(o), "frequency": 0}]), "frequency"),
        (lambda o: ([o], [{"scheduler": 3}]), "must be one of torch.optim"),
        (lambda o: ([o], [plateau(o)]), "ReduceLROnPlateau needs `monitor`"),
    ],
)
def test_what_configure_optimizers_must_not_give_is_one_line(lit, given, message):
    class Lit(lit):
        def configure_optimizers(self):
            return given(sgd(self))

    with pytest.raises((ConfigError, UnsupportedFeatureError), match=message) as error:
        trained(Lit())
    assert "\n" not in str(error.value)


REFUSED = {
    **{
        name: (
            {name: lambda self, *args: None},
            f"Lit has {name}, which is not called here",
        )
        for name in (
            *("optimizer_step", "configure_gradient_clipping", "backward"),
            *("on_before_optimizer_step", "transfer_batch_to_device"),
            *("configure_callbacks", "lr_scheduler_step"),
        )
    },
    "manual": ({"automatic_optimization": False}, "automatic_optimization = False"),
    "no loss": (
        {"training_step": lambda self, batch, batch_idx: None},
        "a loss of one number",
    ),
    "skips": (
        {"on_train_batch_start": lambda self, batch, batch_idx: -1},
        "should_stop = True",
    ),
    "trainer": (
        {"on_train_start": lambda self: self.trainer.datamodule},
        "self.trainer.datamodule: the model runs without Lightning's Trainer",
    ),
    "length": (
        {"setup": lambda self, stage: self.trainer.estimated_stepping_batches},
        "not known before run",
    ),
    "sum": (
        {"on_train_epoch_end": lambda self: self.log("x", 1.0, reduce_fx="sum")},
        "only 'mean' is taken",
    ),
    "shape": (
        {"on_train_epoch_end": lambda self: self.log("x", torch.ones(2))},
        "one number is needed",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_cannot_have_is_refused_by_name(lit, case, tmp_path):
    members, message = REFUSED[case]
    kind = type("Lit", (lit,), members)
    with pytest.raises((ConfigError, UnsupportedFeatureError), match=message) as error:
        trained(kind(), work_dir=tmp_path)
    assert "\n" not in str(error.value)


def test_a_second_loss_or_optimizer_is_refused(lit):
    with pytest.raises(ConfigError, match="remove the separate loss"):
        EpochBasedRunner(lit(), loss=nn.MSELoss(), max_epochs=1)
    model = lit()
    with pytest.raises(ConfigError, match="has configure_optimizers, and an optimizer"):
        EpochBasedRunner(model, optimizer=sgd(model), max_epochs=1)


CALLED = {
    *("configure_model", "configure_optimizers", "on_after_backward", "setup"),
    *("on_fit_end", "on_fit_start", "on_load_checkpoint", "on_save_checkpoint"),
    *("on_train_batch_end", "on_train_batch_start", "on_train_end", "on_train_start"),
    *("on_train_epoch_end", "on_train_epoch_start", "on_validation_batch_end"),
    *("on_validation_batch_start", "on_validation_end", "on_validation_epoch_end"),
    *("on_validation_epoch_start", "on_validation_start", "teardown"),
}


def test_no_hook_of_lightning_is_passed_over_in_silence(L):
    from devrun.interop.lightning import NOT_CALLED

    there = {
        name
        for name in dir(L.LightningModule)
        if name.startswith(("on_", "configure_", "optimizer_", "lr_scheduler_"))
        and "_test_" not in name
        and "_predict_" not in name
    }
    assert there - CALLED - NOT_CALLED.keys() == {"on_gpu"}


IN_A_GRAPH = {
    "global_step": lambda self: self.global_step,
    "current_epoch": lambda self: self.current_epoch,
}


@pytest.mark.parametrize("name", IN_A_GRAPH)
def test_a_number_that_a_compiled_graph_would_keep_is_refused_there(lit, name):
    class Lit(lit):
        def training_step(self, batch, batch_idx):
            IN_A_GRAPH[name](self)
            return super().training_step(batch, batch_idx)

    trained(Lit(), epochs=1)
    with pytest.raises(UnsupportedFeatureError, match=f"{name}, but this device runs"):
        trained(Lit(), "ipu", epochs=1)


def test_a_val_phase_of_the_workflow_validates(lit, tmp_path):
    model = lit()
    runner = made(model, work_dir=tmp_path, epochs=1)
    loader = DataLoader(data(), batch_size=8)
    runner.run([loader, loader], [("train", 1), ("val", 1)])
    assert records(tmp_path)[-1]["val_acc"] > 0


MODULE = """
import torch
import pytorch_lightning as pl
from torch.utils.data import DataLoader, TensorDataset

class Lit(pl.LightningModule):
    def __init__(self, width=2):
        super().__init__()
        self.net = torch.nn.Linear(4, width)

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

class Data(pl.LightningDataModule):
    def __init__(self, batch_size=4):
        super().__init__()

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(8, 4), torch.ones(8).long()), 4)
"""
OWN = """
model: {type: own_lit.Lit}
data: {type: own_lit.Data}
runner: {type: EpochBasedRunner, max_epochs: 1}
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    let_torchvision_load()
    pytest.importorskip("pytorch_lightning")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("own_lit.py").write_text(MODULE)
    Path("own.yaml").write_text(OWN)
    yield ["own.yaml", "--device", "cpu"]
    sys.modules.pop("own_lit", None)


def test_the_older_package_works_too(own):
    assert main(["train", *own, "--import", "own_lit"]) == 0
    assert json.loads(Path("work_dirs/own/run.json").read_text())["iterations"] == 2


def test_a_model_without_a_training_step_is_told_so(own, capsys):
    words = ["--import", "own_lit", "--dry-run", "--cfg-options"]
    change = "model.type=pytorch_lightning.LightningModule"
    assert main(["train", *own, *words, change]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == "devrun: error: LightningModule has no training_step: write it"
