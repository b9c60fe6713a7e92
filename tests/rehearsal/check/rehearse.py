"""`rehearse.py CONFIG DEVICE MODE [MODULE]`: one rehearsal, its notes as JSON.

In place of `devrun check`, which starts Python anew for each device and mode.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import torch

from devrun.config import Config, check_config
from devrun.log.logger import get_logger
from devrun.probes.notebook import Notebook, read
from devrun.probes.request import Grants
from devrun.rehearsal.check.rehearsal import rehearse
from devrun.rehearsal.check.requests import requests
from tests.support.packages import vision


def main(file, device, mode, module="", memory=""):
    torch.set_num_threads(1)
    if find_spec("torchvision"):
        vision("torch")  # what a model here may import of it
    get_logger("devrun", log_level="ERROR")
    cfg = Config.fromfile(file, import_custom_modules=False)
    check_config(cfg)
    grants = Grants(file, imports=(module,) if module else ())
    size = int(memory) if memory else None
    asked = requests(cfg, grants, (device,), steps=3, samples=8, memory=size)
    request = next(one for one in asked if one.mode == mode)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "notes"
        rehearse(request, Notebook(path))
        notes = read(path)
        said = {**asdict(notes), "reduced": notes.reduced}
        print("\nNOTES", json.dumps(said, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
