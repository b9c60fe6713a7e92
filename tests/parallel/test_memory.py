"""A model whose training is too large for one process, and not for four."""

from __future__ import annotations

import functools
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOM = 490
"""MiB of data (RLIMIT_DATA) that a process may have beside what Python and torch take.
Weights, gradients and AdamW's moments take 868, a fourth of them 217."""
BEFORE = """
import devrun.runners, torch.distributed.fsdp, torch.optim
print(next(line for line in open("/proc/self/status") if "VmData" in line).split()[1])
"""
CONFIG = """
model: {type: GPT, vocab_size: 256, block_size: 16, n_layer: 8, n_embd: 768, n_head: 8}
data:
  samples_per_gpu: 1
  workers_per_gpu: 0
  train: {type: TextCorpus, files: run.yaml, block_size: 16}
optimizer: {type: AdamW, lr: 0.001}
runner: {type: IterBasedRunner, max_iters: 3}
checkpoint_config: {interval: 2, by_epoch: false}
parallel: {type: fsdp}
device: cpu
seed: 5
"""


@functools.cache
def cap():
    """KiB of data that each process may have."""
    done = subprocess.run(
        [sys.executable, "-c", BEFORE], capture_output=True, text=True, check=True
    )
    return int(done.stdout) + (ROOM << 10)


def train(folder, *words):
    """(exit status, last line) of `devrun train`, each of its processes capped."""
    command = [sys.executable, "-m", "devrun", "train", "run.yaml", "--no-progress"]
    line = shlex.join([*command, "--work-dir", "work", *words])
    done = subprocess.run(
        ["bash", "-c", f"ulimit -d {cap()}; exec {line}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_four_processes_train_what_does_not_fit_into_one(tmp_path):
    (tmp_path / "run.yaml").write_text(CONFIG)
    status, line = train(tmp_path)
    assert status == 6
    assert line.startswith("devrun: error: out of memory on cpu with 1 samples")
    four = ("--num-devices", "4")
    status, line = train(tmp_path, *four, "--overwrite")
    assert status == 0, line
    longer = ("--resume-from", "auto", "--cfg-options", "runner.max_iters=4")
    status, line = train(tmp_path, *four, *longer)
    assert status == 0, line
