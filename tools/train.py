#!/usr/bin/env python3
"""`tools/train.py CONFIG ...` is `devrun train CONFIG ...`, also when not installed."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from devrun.cli.main import main  # the path above is what it needs

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
