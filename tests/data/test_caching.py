"""`cache`: images are decoded once, for all workers, and stay the same."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from devrun.data import build_dataloader, build_dataset
from devrun.data.prepared import PreparedLoader
from devrun.data.spec import LoaderSpec
from devrun.errors import ConfigError, UnsupportedFeatureError
from tests.data.helpers import read

pytest.importorskip("PIL")

CROP = [{"type": "RandomResizedCrop", "size": 8}, {"type": "RandomHorizontalFlip"}]
TAIL = [
    {"type": "ToTensor"},
    {"type": "Normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
]


def _loader(path: Path, workers: int = 0, **options: Any) -> PreparedLoader:
    pipeline = [{"type": "Resize", "size": 10}, *CROP, *TAIL]
    cfg = {"type": "ImageFolder", "data_prefix": str(path), "pipeline": pipeline}
    made = build_dataloader(build_dataset([cfg]), 4, workers, **options)
    return PreparedLoader(LoaderSpec.of(made, seed=7))


def _same(found: list[Any], wanted: list[Any]) -> bool:
    pairs = zip(found, wanted, strict=True)
    return all(all(map(torch.equal, one, two)) for one, two in pairs)


@pytest.mark.parametrize("limit", ["1MB", 1000])
def test_images_that_were_decoded_once_come_from_memory(
    folder: Path, limit: str | int
) -> None:
    wanted = [read(_loader(folder), epoch) for epoch in range(2)]
    loader = _loader(folder, 2, cache=limit)
    assert _same(read(loader, 0), wanted[0])
    kept = loader.dataset.datasets[0].decoded
    there = int((kept.offsets > 0).sum())
    assert there == (10 if limit == "1MB" else 1)  # each 12 x 14 pixels, and a header
    if limit == "1MB":
        for path in folder.glob("*/*.png"):
            path.unlink()  # nobody decodes them again, in whichever process
    assert _same(read(loader, 1), wanted[1])
    loader.close()
    with pytest.raises(UnsupportedFeatureError, match="workers that are forked"):
        pickle.dumps(loader.dataset)


def test_what_cannot_be_kept_is_told(folder: Path) -> None:
    for wrong in ("lots", 0, "0GiB"):
        with pytest.raises(ConfigError, match="takes a size such as 2GiB"):
            _loader(folder, cache=wrong)
    tensors = torch.utils.data.TensorDataset(torch.ones(4))
    with pytest.raises(ConfigError, match="not for TensorDataset"):
        build_dataloader(tensors, 2, cache="1GiB")
