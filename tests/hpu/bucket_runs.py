"""Trains a small GPT on the emulated device: with buckets, then without.

A first run on batches of one other size compiles all that does not depend on it. For
each of the others it prints [size of the batch, graphs compiled] of every update, and
what was warned of. Run by test_buckets.py: the emulator changes torch for the whole
process.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from devrun import Hook
from devrun.config import Config
from devrun.rehearsal.check.hpu.report import ReportHook
from devrun.runners.training import build_training
from tests.support.observe import Lines

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "gpt"
OPTIONS = {
    "device": {"type": "hpu", "emulate": True},
    "model": {"block_size": 64, "n_layer": 1, "n_head": 2, "n_embd": 16},
    "data.train.block_size": 64,
    "data.train.max_bytes": 60_000,
    "data.samples_per_gpu": 4,
    "data.buckets.max_length": 64,
    "data.buckets.too_long": "truncate",
    "checkpoint_config": None,
    "log_config.interval": 1000,
}


class Compilations(Hook):
    """Graphs compiled in each update."""

    priority = "LOWEST"

    def __init__(self):
        self.found = []
        self.total = 0

    def before_run(self, runner):
        self.total = compiled()

    def after_train_iter(self, runner):
        before, self.total = self.total, compiled()
        size = runner.data_batch["input_ids"].shape[1]
        self.found.append([size, self.total - before])


def compiled():
    from habana_frameworks.torch.hpu import metrics

    return dict(metrics.metric_global("graph_compilation").stats())["TotalNumber"]


def run(name, work_dir, options):
    cfg = Config.fromfile(CONFIGS / f"gpt_tiny_stdlib_{name}.yaml")
    cfg.merge_from_dict({**OPTIONS, "work_dir": f"{work_dir}/{name}", **options})
    hook, warned = Compilations(), Lines()
    warned.setLevel(logging.WARNING)
    training = build_training(cfg, validate=False, progress=False)
    training.runner.register_hook(hook)
    training.runner.register_hook(ReportHook())
    training.runner.logger.addHandler(warned)
    training.run()
    training.runner.close()
    training.runner.logger.removeHandler(warned)
    return {"updates": hook.found, "warned": warned.messages}


def main(mode, updates, work_dir):
    one = {"data.buckets.sizes": [9], "data.buckets.max_length": 9}
    options = {"hpu": {"mode": mode}, "runner.max_iters": int(updates)}
    run("buckets", work_dir, {**options, **one, "runner.max_iters": 3})
    runs = {name: run(name, work_dir, options) for name in ("buckets", "varlen")}
    sys.stdout.write("\n" + json.dumps(runs))


main(*sys.argv[1:])
