"""Folders of images, one for each class; without any, some are drawn first."""

from pathlib import Path

from PIL import Image, ImageDraw
from torch.utils.data import Dataset

from devrun.registry import DATASETS


@DATASETS.register_module()
class MyImages(Dataset):
    """`root/SPLIT/CLASS/*.png`; `pipeline` begins with a Pillow image."""

    def __init__(self, pipeline, root="images", split="train"):
        if not Path(root).exists():
            draw(Path(root))
        classes = sorted(path for path in Path(root, split).iterdir() if path.is_dir())
        self.files = [
            (file, label)
            for label, folder in enumerate(classes)
            for file in sorted(folder.glob("*.png"))
        ]
        self.pipeline = pipeline

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        file, label = self.files[index]
        return self.pipeline(Image.open(file).convert("RGB")), label


def draw(root):
    """Circles and squares of several sizes."""
    for split, sizes in (("train", range(8, 28)), ("val", range(9, 28, 3))):
        for kind in ("ellipse", "rectangle"):
            folder = root / split / kind
            folder.mkdir(parents=True)
            for size in sizes:
                image = Image.new("RGB", (32, 32))
                shape = getattr(ImageDraw.Draw(image), kind)
                shape((16 - size // 2, 16 - size // 2, 16 + size // 2, 16 + size // 2))
                image.save(folder / f"{size}.png")
