"""`python -m devrun` is the command `devrun`."""

from __future__ import annotations

import os
import sys

import devrun

if __name__ == "__main__":
    # As the command does, and unlike -m: a file here must not stand for a module.
    home = os.path.dirname(os.path.dirname(os.path.abspath(devrun.__file__)))
    if sys.path[0] == os.getcwd() != home and not getattr(sys.flags, "safe_path", 0):
        del sys.path[0]

from devrun.cli.main import main  # not before the path is right

if __name__ == "__main__":
    sys.exit(main())
