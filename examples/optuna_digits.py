"""A search by Optuna, which learns from its trials, over the digits config.

    python examples/optuna_digits.py

Each trial is a training of the config with other values; a hook tells Optuna of each
evaluation, and ends a trial that Optuna gives up. Trials are kept in `optuna.db`: the
same command goes on.
"""

from __future__ import annotations

from typing import Any

import optuna

from devrun.config import Config
from devrun.hooks.early_stopping import ResultHook
from devrun.run import Run
from devrun.runners.training import build_training

CONFIG = "configs/digits/resnet8_digits.yaml"


class PruningHook(ResultHook):
    """Reports `monitor` of each evaluation, and stops where Optuna says so."""

    def __init__(self, trial: Any, monitor: str) -> None:
        self.trial, self.monitor = trial, monitor
        self.value = 0.0

    def follow(self, runner: Run, value: float) -> None:
        self.value = value
        self.trial.report(value, runner.epoch)
        if self.trial.should_prune():
            raise optuna.TrialPruned()


def objective(trial: Any, config: str = CONFIG, epochs: int = 3) -> float:
    """The accuracy of one training."""
    cfg = Config.fromfile(config)
    cfg.merge_from_dict(
        {
            "optimizer.lr": trial.suggest_float("lr", 1e-3, 1.0, log=True),
            "optimizer.weight_decay": trial.suggest_float(
                "decay", 1e-5, 1e-2, log=True
            ),
            "runner.max_epochs": epochs,
            "work_dir": f"work_dirs/optuna/{trial.number}",
        }
    )
    training = build_training(cfg, progress=False)
    hook = PruningHook(trial, "accuracy")
    training.runner.register_hook(hook)
    try:
        training.run()
    finally:
        training.runner.close()
    return hook.value


def main(trials: int = 20) -> Any:
    """Search; the study."""
    study = optuna.create_study(
        study_name="digits",
        storage="sqlite:///optuna.db",
        direction="maximize",
        load_if_exists=True,
    )
    study.optimize(objective, n_trials=trials)
    print(study.best_params, study.best_value)
    return study


if __name__ == "__main__":
    main()
