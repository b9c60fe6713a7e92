"""Scenarios that several processes do together, and what each of them found."""

import json
import logging
import sys
from pathlib import Path

import torch

from devrun import dist
from tests.support import zygote


def do(scenarios):
    """The body of a worker, `SCRIPT FOLDER [NAME ...]`: those of the names, or all.

    What each returns is written as JSON for its rank.
    """
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    logging.getLogger("devrun").setLevel(logging.WARNING)
    dist.init_dist("pytorch", "gloo", timeout=60)
    torch.set_num_threads(1)
    known = scenarios(folder)
    results = {name: known[name]() for name in names or known}
    rank = dist.get_dist_info()[0]
    (folder / f"rank{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.close_dist()


def found_by(script, folder, count=2):
    """Of the processes of `script`: what each found, and what it wrote to stderr."""
    running = zygote.start_ranks([script, folder], folder, count)
    said = [process.communicate(timeout=300)[1] for process in running]
    assert not any(process.returncode for process in running), "\n".join(said)
    found = [folder / f"rank{rank}.json" for rank in range(count)]
    return [json.loads(path.read_text()) for path in found], said
