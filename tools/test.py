#!/usr/bin/env python3
"""`tools/test.py CONFIG CHECKPOINT ...` is `devrun test ...`, also uninstalled."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from devrun.cli.main import main  # the path above is what it needs

if __name__ == "__main__":
    sys.exit(main(["test", *sys.argv[1:]]))
