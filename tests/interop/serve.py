"""`serve.py WORDS`: devrun in a process of its own, for a device that changes torch."""

from __future__ import annotations

import sys

from devrun.cli.main import main
from tests.registry.scanning import let_torchvision_load

if __name__ == "__main__":
    let_torchvision_load()
    sys.exit(main(sys.argv[1:]))
