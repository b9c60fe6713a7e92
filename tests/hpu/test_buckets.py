"""Batches of changing length on the emulated device: what compiles, and what helps."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("bucket_runs.py")
UPDATES = 50
"""Of the run with buckets and of the one without."""
GRAPHS = {"lazy": 1, "compile": 2}
"""Of each shape: one for the whole update, or the region's forward and backward."""


@pytest.fixture(scope="module")
def runs(python, tmp_path_factory):
    """mode -> updates and warnings of the run with buckets and of the one without."""
    folders = {mode: tmp_path_factory.mktemp(mode) for mode in GRAPHS}

    def results(mode):
        done = python([SCRIPT, mode, UPDATES, folders[mode]])
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(folders, pool.map(results, folders), strict=True))


def compiled_at(updates):
    """Sizes, each as often as a graph was compiled for it."""
    return [size for size, graphs in updates for _ in range(graphs)]


@pytest.mark.parametrize("mode", list(GRAPHS))
def test_with_buckets_there_is_one_compilation_for_each(runs, mode):
    updates = runs[mode]["buckets"]["updates"]
    compiled = compiled_at(updates)
    assert len(updates) == UPDATES
    sizes = {size for size, _ in updates}
    assert sorted(compiled) == sorted([*sizes] * GRAPHS[mode])
    assert 3 <= len(sizes) <= 8
    assert runs[mode]["buckets"]["warned"] == []


@pytest.mark.parametrize("mode", list(GRAPHS))
def test_without_buckets_every_new_length_compiles_and_the_report_says_so(runs, mode):
    updates = runs[mode]["varlen"]["updates"]
    shared = {size for size, _ in runs[mode]["buckets"]["updates"]}
    lengths = {size for size, _ in updates} - shared
    compiled = [size for size in compiled_at(updates) if size not in shared]
    assert sorted(compiled) == sorted([*lengths] * GRAPHS[mode])
    assert len(lengths) > 8
    (report,) = runs[mode]["varlen"]["warned"]
    assert "compiled again" in report
    assert "batch: " in report
    assert "buckets" in report
