"""Weights from the network: when allowed, checked, whole in the cache or not there.

The cache is that of `torch.hub`, which MMCV and torchvision use as well.
"""

from __future__ import annotations

import http.client
import logging
import os
import re
import socket
import urllib.error
from pathlib import Path
from urllib.parse import unquote, urlsplit

import torch

from devrun.checkpoint.storage import make_durable
from devrun.errors import CheckpointError
from devrun.files import disk_errors
from devrun.network import may_download

_LOGGER = logging.getLogger("devrun.checkpoint")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}")
_IN_NAME = re.compile(r".*-([0-9a-f]{8,64})\.\w+")
_CHECKSUM = re.compile(r"[0-9a-f]{8,64}")
_TIMEOUT = 30.0  # seconds without a byte
_NO_NETWORK = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ValueError,
)


def fetched(address: str) -> Path:
    """The file of an `http(s)://` address, in the cache.

    Its SHA-256 must begin with the hexadecimal digits, eight or more, after
    `#sha256=` at the end of the address, or else with those before the suffix of the
    file's name, as in OpenMMLab's and torchvision's: `resnet50-0676ba61.pth`. A file
    that is in the cache is used; it is never replaced.

    Raises:
        CheckpointError: not allowed (`--allow-download`), no checksum, not there, cut
            short, or another checksum.
        StorageError: the cache cannot be written.
    """
    if not may_download():
        raise CheckpointError(
            f"{address!r} is on the network: give --allow-download (in code, "
            "`devrun.network.downloads_allowed()`), or download it and give the "
            "path of the file"
        )
    name, digits = _name_and_checksum(address)
    root = Path(torch.hub.get_dir()) / "checkpoints"
    target = root / name
    with disk_errors(f"cannot write in {str(root)!r}"):
        make_durable(root)
        if not os.path.lexists(target):
            _LOGGER.info("downloading %s to %s", address, target)
            _download(address.partition("#")[0], target, digits)
    return target


def _name_and_checksum(url: str) -> tuple[str, str]:
    """The file's name in the cache, and what its SHA-256 must begin with."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CheckpointError(f"{url!r} is no http:// or https:// address")
    name = unquote(parts.path).rsplit("/", 1)[-1]
    if not _NAME.fullmatch(name):
        raise CheckpointError(f"{url!r} names no file that the cache could hold")
    key, _, given = parts.fragment.partition("=")
    if parts.fragment and (key != "sha256" or not _CHECKSUM.fullmatch(given.lower())):
        raise CheckpointError(
            f"{url!r}: after # comes sha256= with 8 to 64 hexadecimal digits"
        )
    in_name = _IN_NAME.fullmatch(name)
    if not given and in_name is None:
        raise CheckpointError(
            f"{url!r} has no checksum in its name: append #sha256= and at least the "
            "first 8 hexadecimal digits of the file's SHA-256"
        )
    digits = given.lower()
    if in_name is None:  # model.safetensors of one model is not that of another
        stem, dot, suffix = name.rpartition(".")
        name = f"{stem}-{digits[:8]}{dot}{suffix}" if dot else f"{name}-{digits[:8]}"
    return name, digits or (in_name[1] if in_name else "")


def _download(url: str, target: Path, digits: str) -> None:
    """Put what is there at `target`, once it is whole and has this checksum."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT)  # torch's function has none
    try:
        torch.hub.download_url_to_file(url, str(target), digits, progress=False)
    except urllib.error.HTTPError as error:
        raise CheckpointError(
            f"{url!r}: the server answers {error.code} {error.reason}; check the "
            "address"
        ) from None
    except RuntimeError as error:
        raise CheckpointError(
            f"{url!r} ended too early, or is not the file that was meant: {error}"
        ) from None
    except _NO_NETWORK as error:
        reason = getattr(error, "reason", None) or error or type(error).__name__
        raise CheckpointError(
            f"{url!r} could not be downloaded: {reason}; is this machine offline? "
            "Get it elsewhere and give the path of the file"
        ) from None
    finally:
        socket.setdefaulttimeout(before)
