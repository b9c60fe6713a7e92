"""What several tests of data read."""

import pytest
import torch


@pytest.fixture
def folder(tmp_path):
    """5 cats and 5 dogs, of noise, 14 pixels wide and 12 high."""
    image = pytest.importorskip("PIL.Image")
    torch.manual_seed(3)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(5):
            pixels = torch.randint(256, (12, 14, 3), dtype=torch.uint8)
            path = tmp_path / name / f"{number}.png"
            image.fromarray(pixels.numpy()).save(path)
    return tmp_path
