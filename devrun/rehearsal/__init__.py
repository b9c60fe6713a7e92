"""What a training would do, did, or does otherwise elsewhere, as plain results.

Each module gives dataclasses; a command prints them, `--json` writes them.
"""
