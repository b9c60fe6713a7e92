"""`python -m devrun.interop.mmcv SCRIPT ARGUMENTS`: a program written for MMCV."""
