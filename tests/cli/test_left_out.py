"""What `devrun train` says of updates left out and of weights that are not finite."""

import pytest

from tests.cli.conftest import logged, record

RUN = "work_dirs/small"


@pytest.mark.parametrize(
    ("epochs", "said"),
    [
        (20, "50 updates in a row were left out"),
        (3, "all 12 updates were left out: nothing has been trained"),
    ],
)
def test_a_scale_that_trains_nothing_is_status_5(config, train, epochs, said):
    runner = {"type": "EpochBasedRunner", "max_epochs": epochs}
    status, _, err = train(config(runner=runner, fp16={"loss_scale": 2.0**40}))
    assert status == 5
    assert said in err.splitlines()[-1]
    assert record(RUN)["status"] == "failed"


def test_left_out_updates_are_in_the_log_and_the_summary(config, train):
    path = config(
        runner={"type": "EpochBasedRunner", "max_epochs": 6},
        fp16={"loss_scale": 2.0**40},
        optimizer_config={"nonfinite": "warn"},
    )
    status, out, err = train(path)
    assert status == 0
    assert "left out: 24 of 24 updates" in out
    assert "10 updates in a row were left out" in err
    assert record(RUN)["skipped_updates"] == 24
    counts = [r["skipped_updates"] for r in logged(RUN)]
    assert counts == list(range(2, 25, 2))


def test_a_clean_run_says_nothing_of_it(config, train):
    status, out, _ = train(config())
    assert status == 0
    assert "left out" not in out
    assert record(RUN)["skipped_updates"] == 0
    assert record(RUN)["not_finite"] is None
    assert not any("skipped_updates" in line for line in logged(RUN))


@pytest.mark.parametrize("action", ["warn", "ignore"])
def test_weights_that_are_not_finite_are_told_at_the_end(config, train, action):
    path = config(
        optimizer={"type": "SGD", "lr": 1e30}, optimizer_config={"nonfinite": action}
    )
    status, out, err = train(path)
    assert status == 0
    assert "not finite: parameter 'layers." in out
    assert f"nonfinite is {action!r}" in err
    assert record(RUN)["not_finite"].startswith("parameter ")
