"""The plan of docs/parallel.md for another package's model, on two processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parallel.test_strategies import assert_same
from tests.parallel.worker import train
from tests.support.ranks import found_by

SCRIPT = Path(__file__).with_name("llama_worker.py")


@pytest.mark.slow
def test_a_llama_by_a_plan(tmp_path):
    pytest.importorskip("transformers")
    from tests.parallel.llama_worker import llama

    for rank in found_by(SCRIPT, tmp_path)[0]:
        assert_same(rank["parts"], train(model=llama()))
