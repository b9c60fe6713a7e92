"""`python -m devrun` is the command `devrun`."""

import os
import sys

import devrun

if __name__ == "__main__":
    # As the command does, and unlike -m: a file here must not stand for a module.
    home = os.path.dirname(os.path.dirname(os.path.abspath(devrun.__file__)))
    named = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if os.getcwd() not in (home, *map(os.path.abspath, named)):
        sys.path[:1] = [path for path in sys.path[:1] if path != os.getcwd()]

from devrun.cli.main import main  # not before the path is right

if __name__ == "__main__":
    sys.exit(main())
