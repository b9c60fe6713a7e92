"""Flags with which a training is tried, as Lightning's Trainer has them."""

from importlib.util import find_spec

import pytest
import torch

from tests.cli.conftest import logged, newest, one_error, record

NAN = """
import torch
from torch import nn
from devrun.registry import MODELS


@MODELS.register_module()
class RootOfNothing(nn.Linear):
    def forward(self, features):
        return super().forward(features) * torch.sqrt(self.weight * 0).sum()
"""


def test_limits_leave_some_of_an_epoch_and_of_an_evaluation_out(config, train):
    words = ("--limit-train", "3", "--limit-val", "0.5", "--work-dir", "out")
    assert train(config(), *words)[0] == 0
    assert record("out")["iterations"] == 2 * 3
    assert [line["iter"] for line in logged("out", "val")] == [1, 1]  # of 2 batches


def test_the_written_config_has_the_limits(config, train):
    path = config(checkpoint_config=None)
    assert train(path, "--limit-train", ".5", "--work-dir", "out")[0] == 0
    assert train("out/config.yaml", "--work-dir", "again")[0] == 0
    assert record("again")["iterations"] == 2 * 2


def test_overfitting_reads_the_same_batches_in_each_epoch(config, train):
    words = ("--overfit", "2", "--work-dir", "out", "--seed", "1")
    runner = {"type": "EpochBasedRunner", "max_epochs": 12}
    assert (
        train(config(runner=runner, optimizer={"type": "Adam", "lr": 0.1}), *words)[0]
        == 0
    )
    losses = [line["loss"] for line in logged("out")]
    assert len(losses) == 12
    # 16 samples that come again and again are learnt by heart
    assert losses[-1] < 0.1 < losses[0]


@pytest.mark.parametrize("given", ["0", "1.5", "-1", "x"])
def test_a_limit_is_a_number_or_a_fraction(config, train, given):
    one_error(train(config(), "--limit-train", given), 2)


@pytest.mark.parametrize("given", [0, 1.0, "1"])
def test_a_limit_of_a_config_is_checked(config, train, given):
    runner = {"type": "EpochBasedRunner", "max_epochs": 1, "limit_val": given}
    assert "runner.limit_val" in one_error(train(config(runner=runner)), 2)


def test_a_fast_dev_run_is_a_dry_run(config, train, tmp_path):
    status, out, _ = train(config(), "--fast-dev-run", "--work-dir", "out")
    assert status == 0
    assert "dry run: nothing was written" in out
    assert not (tmp_path / "out").exists()


def test_an_anomaly_is_named(config, train, tmp_path):
    (tmp_path / "root_of_nothing.py").write_text(NAN)
    model = {"type": "RootOfNothing", "in_features": 16, "out_features": 4}
    path = config(model=model, optimizer_config={"nonfinite": "ignore"})
    status, _, err = train(path, "--detect-anomaly", "--import", "root_of_nothing")
    assert status == 1
    assert "returned nan values" in err
    assert "super().forward(features) * torch.sqrt" in err  # the line of the forward
    assert not torch.is_anomaly_enabled()


@pytest.mark.skipif(
    find_spec("torchinfo") is not None, reason="it is drawn by torchinfo"
)
def test_a_summary_lists_the_layers(config, train):
    out = train(config(freeze=["layers.1.*"]), "--summary", "--dry-run")[1]
    rows = [line.split() for line in out.splitlines()]
    assert ["(all)", "MLP", "172"] in rows  # 16 * 8 + 8 + 8 * 4 + 4
    assert any(row[1:] == ["Linear", "136", "not", "trained"] for row in rows)


def test_a_run_out_of_time_is_saved_and_goes_on(config, train):
    runner = {"type": "EpochBasedRunner", "max_epochs": 10**6, "max_time": "0h1s"}
    words = ("--work-dir", "out", "--cfg-options", "runner.max_time=0.1")
    path = config(runner=runner, evaluation=None)
    saved = []
    for _ in range(2):
        error = train(path, *words, "--resume-from", "auto", "--no-validate")
        assert error[0] == 75
        assert "stopped by max_time after" in error[2]
        assert record("out")["status"] == "interrupted"
        saved.append(newest("out").name)
    assert saved[0] < saved[1]


def test_a_run_out_of_time_that_saves_nothing_is_done(config, train):
    runner = {"type": "EpochBasedRunner", "max_epochs": 10**6, "max_time": 0.1}
    path = config(runner=runner, evaluation=None, checkpoint_config=None)
    assert train(path, "--work-dir", "out", "--no-validate")[0] == 0
    assert record("out")["stopped"] == "max_time is reached (0.1)"


@pytest.mark.parametrize("given", ["2 hours", "", 0, "1s2h", True])
def test_a_time_is_seconds_or_has_units(config, train, given):
    runner = {"type": "EpochBasedRunner", "max_epochs": 1, "max_time": given}
    assert "runner.max_time: takes seconds, or" in one_error(
        train(config(runner=runner)), 2
    )
