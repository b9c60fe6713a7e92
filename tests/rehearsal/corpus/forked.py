"""`devrun check`, whose processes are forked from this one, which has torch at hand.

It starts each from nothing, which takes longer than most programs here.
"""

import multiprocessing
import sys

from devrun.cli.main import main

if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda _: fork
    sys.exit(main(sys.argv[1:]))
