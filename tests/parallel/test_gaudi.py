"""Each strategy on two emulated Gaudis over HCCL, against one CPU."""

import shutil
from pathlib import Path

import pytest

from tests.parallel.test_strategies import assert_same
from tests.parallel.worker import averaged, train
from tests.support.near import assert_near
from tests.support.ranks import found_by

SCRIPT = Path(__file__).with_name("gaudi_worker.py")
pytestmark = pytest.mark.slow


def test_two_emulated_gaudis_train_as_one_cpu(tmp_path):
    alone = train()
    for rank in found_by(SCRIPT, tmp_path)[0]:
        assert rank["groups"] == "cpu:gloo,hpu:hccl"
        for how in ("fsdp", "hybrid", "tensor"):
            assert_same(rank[how], alone)
        for how in ("fsdp bf16", "tensor bf16"):
            assert rank[how]["losses"] == pytest.approx(alone["losses"], abs=2e-3)
        whole = averaged(tmp_path / "alone", None)
        for how in ("saved", "saved in parts"):
            assert_near(rank[how]["losses"], whole["losses"])
            assert_near(rank[how]["evaluated"], whole["evaluated"])
            assert rank[how]["predicted"] == whole["predicted"]
    for folder in ("saved", "parts"):  # goes on, on the CPU
        newest = sorted((tmp_path / folder / "checkpoints").iterdir())[-1]
        shutil.rmtree(newest)
        resumed = averaged(tmp_path / folder, None, resume=True)
        assert_near(resumed["losses"], whole["losses"][2:])
        assert_near(resumed["evaluated"], whole["evaluated"][1:])
