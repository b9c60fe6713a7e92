"""Batches of changing length on the emulated device: what compiles, and what helps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("bucket_runs.py")
ROOT = SCRIPT.parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Updates and warnings of the run with buckets and of the one without."""
    work_dir = tmp_path_factory.mktemp("runs")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(work_dir)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def compiled_at(updates):
    """Sizes, each as often as a graph was compiled for it."""
    return [size for size, graphs in updates for _ in range(graphs)]


def test_with_buckets_there_is_one_compilation_for_each(runs):
    updates = runs["buckets"]["updates"]
    compiled = compiled_at(updates)
    assert len(updates) == 50
    assert sorted(compiled) == sorted({size for size, _ in updates})
    assert 4 <= len(compiled) <= 8
    assert runs["buckets"]["warned"] == []


def test_without_buckets_every_new_length_compiles_and_the_report_says_so(runs):
    updates = runs["varlen"]["updates"]
    shared = {size for size, _ in runs["buckets"]["updates"]}
    lengths = {size for size, _ in updates} - shared
    assert sorted(set(compiled_at(updates)) - shared) == sorted(lengths)
    assert len(lengths) > 8
    (report,) = runs["varlen"]["warned"]
    assert "compiled again" in report
    assert "batch: " in report
    assert "buckets" in report
