"""Data sets by name; importing `devrun.data` registers them in DATASETS."""
