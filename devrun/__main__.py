"""`python -m devrun` is the command `devrun`."""

from __future__ import annotations

import sys

from devrun.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
