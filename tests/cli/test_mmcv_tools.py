import os
import subprocess
import sys
from pathlib import Path

import pytest

from devrun.cli.main import main
from tests.cli.conftest import logged, record

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def lrs(folder):
    return {line["lr"] for line in logged(folder)}


def test_auto_scale_lr_follows_the_samples_of_an_update(config, train):
    path = config(auto_scale_lr={"base_batch_size": 16})
    status, _, text = train(path, "--work-dir", "w", "--auto-scale-lr")
    assert status == 0, text
    assert lrs("w") == {0.05}  # 8 samples, 0.1 for 16
    status, _, text = train(path, "--work-dir", "v")
    assert status == 0, text
    assert lrs("v") == {0.1}


def test_auto_scale_lr_counts_what_is_accumulated(config, train):
    path = config(
        auto_scale_lr={"enable": True, "base_batch_size": 8},
        optimizer_config={"cumulative_iters": 2},
    )
    status, _, text = train(path, "--work-dir", "w")
    assert status == 0, text
    assert lrs("w") == {0.2}


def test_auto_scale_lr_needs_to_know_what_the_lr_is_for(config, train):
    status, _, text = train(config(), "--work-dir", "w", "--auto-scale-lr")
    assert status == 2
    assert "base_batch_size" in text.splitlines()[-1]


def test_test_takes_metrics_from_the_command_line(config, train, capsys):
    assert train(config(), "--work-dir", "w")[0] == 0
    words = ["test", config(), "w", "--split", "val", "--metrics", "top2", "accuracy"]
    status = main(words)
    out = capsys.readouterr()
    assert status == 0, out.err
    assert "top2" in out.out and "accuracy" in out.out


@pytest.mark.slow
def test_the_scripts_start_a_process_for_each_device(config, tmp_path):
    slurm = tmp_path / "bin"
    slurm.mkdir()
    (slurm / "srun").write_text(
        '#!/bin/sh\nwhile [ "$1" != "$PYTHON" ]; do shift; done\n'
        "export SLURM_NTASKS=2 SLURM_JOB_NODELIST=localhost\n"
        'SLURM_PROCID=1 SLURM_LOCALID=1 "$@" &\n'
        'SLURM_PROCID=0 SLURM_LOCALID=0 "$@" && wait $!\n'
    )
    for path in slurm.iterdir():
        path.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{slurm}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "GPUS": "2",
        "PORT": "29617",
    }
    words = ["part", "job", config(), str(tmp_path / "w"), "--no-progress"]
    done = subprocess.run(
        [TOOLS / "slurm_train.sh", *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert record(tmp_path / "w")["world_size"] == 2


@pytest.mark.parametrize("script", ["dist_train.sh", "slurm_train.sh"])
def test_a_script_without_its_words_says_its_usage(script):
    done = subprocess.run([TOOLS / script], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


def test_what_fp16_says_of_another_device_is_left_out_and_said(config, train):
    fp16 = {"loss_scale": 256.0, "accum_type": "half", "velocity_accum_type": "half"}
    status, _, text = train(config(fp16=fp16), "--work-dir", "w")
    assert status == 0, text
    assert "fp16: not for this device: accum_type, velocity_accum_type" in text
