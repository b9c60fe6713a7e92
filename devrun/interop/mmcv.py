"""Code written for MMCV 1.x on devrun: from this import on, `mmcv.runner` is devrun's.

    import devrun.interop.mmcv
    from mmcv.runner import HOOKS, EpochBasedRunner, Hook      # devrun's
    from mmcv.cnn import ConvModule                            # MMCV's, if installed

It holds in this process, from before the first import of `mmcv`. What asks for it is
the program, `devrun train --mmcv`, or `python -m devrun.interop.mmcv SCRIPT`; a config
cannot. A module and no package: those who look for packages import them.
"""

import sys

from devrun.interop.mmcv_finder import install

if __name__ == "__main__":
    from devrun.interop.mmcv_program import main

    sys.exit(main(sys.argv[1:]))
install()
