"""Names of checkpoints, of their files, and of what a write leaves half done."""

from __future__ import annotations

import re
import secrets

from devrun.errors import CheckpointError

MANIFEST = "MANIFEST.json"
_PIECES = re.compile(r"shard-\d{5,9}-model-\d{5}-of-\d{5}\.safetensors")
STEP_PATTERN = r"step-\d{8,}"
FILE = re.compile(r"[a-z0-9._-]{1,64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")
_PART = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
_LEFTOVER = re.compile(rf"\.(tmp|del|old)-({_NAME.pattern})-[0-9a-f]{{12}}")


def step_name(step: int) -> str:
    """Directory of the checkpoint after `step` updates."""
    return f"step-{step:08d}"


def is_name(name: str) -> bool:
    """Whether a directory of this name could be a checkpoint."""
    return bool(_NAME.fullmatch(name)) and not name.endswith(".json")


def check_name(name: str) -> str:
    """`name`, if a checkpoint can have it; else CheckpointError."""
    if not isinstance(name, str) or not is_name(name):
        raise CheckpointError(
            f"{name!r} cannot name a checkpoint; accepted: letters, digits and ._+-, "
            "at most 128, not beginning with a dot, not ending in .json"
        )
    return name


def is_part(name: str) -> bool:
    """Whether a part of a checkpoint can have this name."""
    return bool(_PART.fullmatch(name))


def is_of_pieces(name: str) -> bool:
    """Whether a file of this name belongs to tensors that were written in pieces."""
    return bool(_PIECES.fullmatch(name))


def temporary(kind: str, name: str) -> str:
    """A new hidden name: `tmp` being written, `del` being deleted, `old` replaced."""
    return f".{kind}-{name}-{secrets.token_hex(6)}"


def parse_leftover(entry: str) -> tuple[str, str] | None:
    """(kind, name) of what `temporary` made, or None."""
    match = _LEFTOVER.fullmatch(entry)
    return (match[1], match[2]) if match else None
