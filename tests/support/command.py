"""The command line, run in the process of the test."""

from devrun.cli.main import main


def command(capsys, *words):
    """`devrun` with `words`; (status, stdout, stderr), with what was said before."""
    try:
        status = main([str(word) for word in words])
    except SystemExit as stop:
        status = stop.code
    return status, *capsys.readouterr()
