"""`on_device: true`: the last transforms on the device, with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from devrun.data import build_dataloader, build_dataset
from devrun.devices.cpu import CPUAdapter
from devrun.errors import ConfigError

pytest.importorskip("PIL")

CROP = [{"type": "RandomResizedCrop", "size": 8}, {"type": "RandomHorizontalFlip"}]
TAIL = [
    {"type": "ToTensor"},
    {"type": "Normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
]


def _batches(cfg: Any, device: dict[str, Any] | None = None, **options: Any) -> Any:
    adapter = CPUAdapter.from_config(device or {})
    adapter.setup(5)
    loader = build_dataloader(build_dataset(cfg), 4, **options)
    return adapter.prepare_dataloader(loader, training=True)


@pytest.mark.parametrize("tail", [TAIL, TAIL[:1], TAIL[1:]])
@pytest.mark.parametrize("channels_last", [False, True])
def test_what_the_device_finishes_has_the_same_bits(
    folder: Path, tail: list[Any], channels_last: bool
) -> None:
    part = {"type": "ImageFolder", "data_prefix": str(folder), "pipeline": CROP + tail}
    cfg = [part, {"type": "RepeatDataset", "dataset": part, "times": 2}]
    device = {"channels_last": channels_last}
    plain = _batches(cfg, device)
    loader = _batches(cfg, device, on_device=True)
    assert next(iter(loader.loader))[0].dtype == torch.uint8
    for (images, labels), (wanted, known) in zip(loader, plain, strict=True):
        assert images.dtype == torch.float32 and torch.equal(images, wanted)
        assert images.stride() == wanted.stride()
        assert torch.equal(labels, known)


def test_a_pipeline_without_such_an_end_is_refused(folder: Path) -> None:
    cfg = {"type": "ImageFolder", "data_prefix": str(folder)}
    jitter = [*TAIL, {"type": "ColorJitter", "contrast": 0.1}]
    with pytest.raises(ConfigError, match="that of ImageFolder ends with ColorJitter"):
        _batches({**cfg, "pipeline": jitter}, on_device=True)
    both = [{**cfg, "pipeline": TAIL}, {**cfg, "pipeline": TAIL[:1]}]
    with pytest.raises(ConfigError, match="these differ"):
        _batches(both, on_device=True)
    mix = [{"type": "Compose", "transforms": []}]
    with pytest.raises(ConfigError, match="cannot be combined with batch_transform"):
        _batches({**cfg, "pipeline": TAIL}, on_device=True, batch_transform=mix)
