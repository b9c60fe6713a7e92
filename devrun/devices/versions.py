"""Which torch a vendor's SDK is built for, and whether it is the one that is here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

import torch


def release_of(*distributions: str) -> str:
    """The version of the first of `distributions` that is installed."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "of an unknown release"


def misfit(name: str, release: str, built_for: Mapping[str, str]) -> str | None:
    """Why release `release` of the SDK `name` cannot be used with the torch here.

    Args:
        built_for: release -> torch, both as `major.minor`. A release that is not in it
            is not checked.
    """
    wanted = built_for.get(_minor(release))
    if wanted in (None, _minor(torch.__version__)):
        return None
    return (
        f"{name} {release} is built for torch {wanted}, this is torch "
        f"{torch.__version__}; {fitting(name, built_for)}"
    )


def fitting(name: str, built_for: Mapping[str, str]) -> str:
    """A clause that names the SDK releases for the installed torch."""
    here = _minor(torch.__version__)
    releases = [release for release, wanted in built_for.items() if wanted == here]
    if releases:
        verb = "are" if releases[1:] else "is"
        return f"{name} {' and '.join(releases)} {verb} for torch {here}"
    newest, wanted = list(built_for.items())[-1]
    return (
        f"no known release of {name} is for torch {here}, the newest, {newest}, is for "
        f"torch {wanted}"
    )


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])
