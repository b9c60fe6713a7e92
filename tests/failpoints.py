"""Failures of a file operation of a checkpoint write, armed from outside of devrun.

`operation:nth:action`: `operation` is one of the names below or `any`; `action` is
`kill`, `torn` (a write: half of it, then kill) or the name of an errno. With 0 for
`nth`, operations are only counted.
"""

import errno
import functools
import os
import signal

from devrun.checkpoint import fileops

OPERATIONS = {
    "mkdir": "make_directory",
    "open": "create",
    "reserve": "reserve",
    "write": "write",
    "fsync": "sync",
    "rename": "rename",
    "unlink": "unlink",
    "rmdir": "remove_directory",
}
_reached = 0


def arm(failpoint, replace=setattr):
    """Let the file operations of this process fail as `failpoint` says.

    `replace` is `monkeypatch.setattr` where the process goes on with other tests.
    """
    global _reached
    _reached = 0
    target, nth, action = failpoint.split(":")
    for operation, name in OPERATIONS.items():
        if target in (operation, "any"):
            # a second one takes the place of the first
            function = getattr(fileops, name)
            function = getattr(function, "__wrapped__", function)
            replace(fileops, name, _failing(function, int(nth), action))


def reached():
    """How many operations the process has come to since the failpoint was armed."""
    return _reached


def _failing(function, nth, action):
    @functools.wraps(function)
    def counted(*args, **kwargs):
        global _reached
        _reached += 1
        if _reached == nth:
            _fail(function.__name__, action, args)
        return function(*args, **kwargs)

    return counted


def _fail(name, action, args):
    if action == "torn" and name == "write":
        fd, data = args
        view = memoryview(data).cast("B")
        os.write(fd, view[: len(view) // 2])
    if action in ("kill", "torn"):
        os.kill(os.getpid(), signal.SIGKILL)
    code = getattr(errno, action)
    raise OSError(code, os.strerror(code))
