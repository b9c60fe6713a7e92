"""Which checkpoint a command line means: one, a run's newest or its best."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devrun.errors import CheckpointError
from devrun.files import user_path

WORDS = ("best", "latest")


def chosen_checkpoint(text: str, places: tuple[Path, ...] = ()) -> str:
    """The checkpoint that `text` names: a path as it is, or for

    - a work_dir, or the `checkpoints` in one: its newest whole checkpoint,
    - `best.json` or `latest.json` in there: the one it points at,
    - `best` or `latest`, where no such path is: the one of `places`.

    Raises:
        CheckpointError: there is none.
    """
    from devrun.checkpoint import checkpoint_at, find_latest, read_pointer

    path = user_path(text)
    if text in WORDS and not path.exists():
        if text == "latest":
            found = find_latest(*places)
        else:
            named = ((place, read_pointer(place, "best")) for place in places)
            found = next((place / name for place, name in named if name), None)
        if found is None:
            where = ", ".join(map(str, places)) or "a work_dir, which is not known here"
            raise CheckpointError(
                f"there is no {text} checkpoint in {where}; name one by its path, or "
                "the run by work_dir"
            )
        return str(found)
    found = checkpoint_at(path)
    return text if found == path else str(found)


def places_of(cfg: Mapping[str, Any], work_dir: Path) -> tuple[Path, ...]:
    """Where a run of `cfg` in `work_dir` keeps its checkpoints."""
    apart = (cfg.get("checkpoint_config") or {}).get("out_dir")
    best = (cfg.get("evaluation") or {}).get("out_dir")
    return (
        work_dir / "checkpoints",
        *([user_path(apart) / work_dir.name] if apart else []),
        *([user_path(best)] if best else []),
    )
