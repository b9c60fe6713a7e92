"""The loader and the dataset that it can read on a Gaudi."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, Dataset


class ImageFolderWithManifest(Dataset[Any]):
    """Images by a list of files; not emulated."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "ImageFolderWithManifest is not emulated; use torchvision's ImageFolder"
        )


class HabanaDataLoader(DataLoader[Any]):
    """torch's loader; ValueError for what the accelerated one does not do.

    It never shuffles, pins its memory and drops the last, smaller batch.
    """

    def __init__(self, dataset: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("shuffle"):
            raise ValueError("HabanaDataLoader takes shuffle=False; give a sampler")
        if not kwargs.get("drop_last", True):
            raise ValueError("HabanaDataLoader takes drop_last=True")
        super().__init__(dataset, *args, **{**kwargs, "drop_last": True})
        self.aeon = None
