"""Makes what the configs beside it read, below `data/`, without a download.

    python examples/hugging_face/make_data.py

- `data/docstrings/`: first sentences of docstrings of the standard library, as
  `train.jsonl` and `val.jsonl` (is it a class or a function?), and as `.txt`
- `data/tokenizer/`: a tokenizer of the words in them
- `data/digits/`: the handwritten digits of scikit-learn, as `datasets` saves them
- `data/image_processor/`: an image processor, which makes them 24 x 24
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from pathlib import Path

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
from sklearn.datasets import load_digits
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, ViTImageProcessorPil

MODULES = (
    *("argparse", "ast", "asyncio", "collections", "configparser", "csv", "datetime"),
    *("decimal", "email.message", "enum", "fractions", "http.client", "io", "json"),
    *("logging", "pathlib", "random", "socket", "statistics", "subprocess", "tarfile"),
    *("textwrap", "threading", "unittest", "urllib.request", "xml.dom.minidom"),
)


def docstrings() -> list[tuple[str, int]]:
    """(first line of a docstring, whether it is a class's), each text once."""
    found = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for _, value in sorted(vars(module).items(), key=lambda pair: pair[0]):
            inner = vars(value).values() if inspect.isclass(value) else ()
            for each in (value, *inner):
                text = inspect.getdoc(each) if callable(each) else None
                if text and text.split("\n")[0]:
                    found[text.split("\n")[0][:200]] = int(inspect.isclass(each))
    return sorted(found.items())


def make_texts(root: Path) -> None:
    """The texts with their labels, and the tokenizer."""
    texts = docstrings()
    folder = root / "docstrings"
    folder.mkdir(parents=True, exist_ok=True)
    for split, keep in (("train", False), ("val", True)):
        chosen = [pair for i, pair in enumerate(texts) if (i % 5 == 0) == keep]
        rows = [json.dumps({"text": text, "label": label}) for text, label in chosen]
        (folder / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
        (folder / f"{split}.txt").write_text("\n".join(text for text, _ in chosen))
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordLevelTrainer(vocab_size=1000, special_tokens=special)
    words.train_from_iterator((text for text, _ in texts), trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(root / "tokenizer")


def make_images(root: Path) -> None:
    """The digits, and an image processor."""
    digits = load_digits()
    pixels = (digits.images / 16 * 255).round().astype(np.uint8)
    features = Features({"image": Image(), "label": ClassLabel(10)})
    splits = {}
    for split, keep in (("train", False), ("val", True)):
        chosen = [i for i in range(len(pixels)) if (i % 5 == 0) == keep]
        columns = {
            "image": [pixels[i] for i in chosen],
            "label": [int(digits.target[i]) for i in chosen],
        }
        splits[split] = Dataset.from_dict(columns, features=features)
    DatasetDict(splits).save_to_disk(str(root / "digits"))
    ViTImageProcessorPil(
        size={"height": 24, "width": 24}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    ).save_pretrained(root / "image_processor")


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "data")
    make_texts(place)
    make_images(place)
