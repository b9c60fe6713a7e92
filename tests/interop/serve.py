"""`serve.py WORDS`: devrun in a process of its own, for a device that changes torch."""

import sys
from pathlib import Path

from devrun.cli.main import main
from devrun.scopes import attach
from tests.support.packages import let_torchvision_load


def take_made_up_files():
    """As the fixture `folder` does, whose files have not CIFAR's checksums."""
    attach("mmpretrain")
    sys.modules["mmpretrain.datasets.cifar"].check_md5 = lambda path, md5: True


if __name__ == "__main__":
    let_torchvision_load()
    if Path("data", "cifar-10-batches-py").exists():
        take_made_up_files()
    sys.exit(main(sys.argv[1:]))
