"""A signal that reaches one of two processes stops both, in the same iteration."""

import json
import re
import signal

import pytest
import yaml

from tests.support import zygote

CONFIG = {
    "model": {"type": "MLP", "in_features": 16, "hidden": [8], "num_classes": 4},
    "loss": {"type": "CrossEntropyLoss"},
    "data": {
        "samples_per_gpu": 4,
        "workers_per_gpu": 0,
        "train": {"type": "SyntheticClassification", "num_samples": 4000},
    },
    "optimizer": {"type": "SGD", "lr": 0.1},
    "checkpoint_config": {"interval": 10**6},
    "log_config": {"interval": 20, "hooks": [{"type": "TextLoggerHook"}]},
    "device": "cpu",
    "seed": 1,
}
RUNNERS = {
    "epochs": {"type": "EpochBasedRunner", "max_epochs": 10**6},
    "iterations": {"type": "IterBasedRunner", "max_iters": 10**9},
}


def started(config, work_dir):
    """Two processes of one run, as torchrun starts them, which have begun to train."""
    words = ("--work-dir", work_dir, "--launcher", "pytorch", "--no-progress")
    processes = zygote.start_ranks(["-m", "devrun", "train", config, *words])
    for line in processes[0].stderr:
        if re.search(r"\t.*loss:", line):
            return processes
    raise AssertionError(f"ended early with {[p.wait() for p in processes]}")


@pytest.mark.parametrize(
    ("rank", "kind"),
    [(1, "iterations"), pytest.param(0, "epochs", marks=pytest.mark.slow)],
)
def test_a_signal_to_one_rank_stops_and_saves_the_run(tmp_path, rank, kind):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, "runner": RUNNERS[kind]}))
    processes = started(path, tmp_path / "out")
    processes[rank].send_signal(signal.SIGTERM)
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [75, 75], "\n".join(said)
    reached = {re.search(r"(\d+) iterations; saved", text)[1] for text in said}
    assert len(reached) == 1
    saved = tmp_path / "out" / "checkpoints" / f"step-{int(reached.pop()):08d}"
    assert (saved / "MANIFEST.json").is_file()
    assert json.loads((tmp_path / "out/run.json").read_text())["status"] == (
        "interrupted"
    )


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGSTOP, "did not answer in time"), (signal.SIGKILL, "has ended")],
    ids=["silent", "gone"],
)
def test_a_lost_process_ends_the_other_with_one_line(tmp_path, number, said):
    path = tmp_path / "config.yaml"
    group = {"backend": "nccl", "timeout": 4}  # MMCV's, which is the device's own
    config = {**CONFIG, "runner": RUNNERS["epochs"], "dist_params": group}
    path.write_text(yaml.safe_dump(config))
    first, second = started(path, tmp_path / "out")
    second.send_signal(number)
    text = first.communicate(timeout=60)[1]
    second.kill()
    second.communicate(timeout=60)
    assert first.returncode == 7, text
    (line,) = (line for line in text.splitlines() if line.startswith("devrun: error"))
    assert f"another process of the run {said}" in line
