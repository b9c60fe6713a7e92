"""Terminals that programs of the tests draw on."""

import fcntl
import os
import pty
import struct
import termios


def terminal(columns):
    """A terminal of 24 lines: its end to read from, and the end for a program."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    return ours, theirs


def drawn(ours):
    """All that was drawn until the last program closed its end."""
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        shown += part
    os.close(ours)
    return shown.decode(errors="replace").replace("\r\n", "\n")
