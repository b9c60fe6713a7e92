"""The project trains: two updates, an evaluation and a checkpoint, in no folder."""

from devrun.cli.main import main


def test_a_dry_run():
    words = ["train", "config.py", "--import", "my_data", "--import", "my_model"]
    assert main([*words, "--dry-run", "--device", "cpu"]) == 0
