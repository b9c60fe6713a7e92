"""What was looked at in other packages, and found fit for a config to name.

`tests/registry/test_scan.py` walks these packages and shows what the tables let
through. A package that is in none of them is judged by the rules of `devrun.trust`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

REVIEWED: dict[str, tuple[str, ...]] = {
    "devrun": (
        "devrun.data",
        "devrun.hooks",
        "devrun.metrics",
        "devrun.models",
        "devrun.optim",
        "devrun.runners",
    ),
    # models and data for demonstrations; those of users are in their own modules
    "lightning": (),
    "lightning_fabric": (),
    "numpy": (),
    "peft": ("peft",),
    "pytorch_lightning": (),
    "timm": (
        "timm.data",
        "timm.layers",
        "timm.loss",
        "timm.models",
        "timm.optim",
        "timm.scheduler",
    ),
    "torch": (
        "torch.nn.modules",
        "torch.optim",
        "torch.utils.data.dataset",
        "torch.utils.data.distributed",
        "torch.utils.data.sampler",
    ),
    "torchmetrics": tuple(
        f"torchmetrics.{name}"
        for name in (
            *("aggregation", "audio", "classification", "clustering", "collections"),
            *("detection", "image", "metric", "multimodal", "nominal", "regression"),
            *("retrieval", "segmentation", "shape", "text", "video", "wrappers"),
        )
    ),
    "torchvision": (
        "torchvision.datasets",
        "torchvision.models",
        "torchvision.ops",
        "torchvision.transforms",
    ),
    "transformers": (
        "transformers.configuration_utils",
        "transformers.data.data_collator",
        "transformers.loss",
        "transformers.modeling_layers",
        "transformers.modeling_utils",
        "transformers.models",
        "transformers.optimization",
        "transformers.utils.quantization_config",
    ),
    # their data sets and models run, import or unpickle what their arguments name
    **dict.fromkeys(
        (
            "fairseq",
            "flair",
            "nemo",
            "petastorm",
            "sentence_transformers",
            "speechbrain",
            "torchdata",
            "ultralytics",
            "webdataset",
        ),
        (),
    ),
}
"""Package -> its modules whose classes a config may name."""

DENIED = frozenset(
    {
        # unpickle a file in the folder that they are given
        "torchvision.datasets.lsun.LSUN",
        "torchvision.datasets.lsun.LSUNClass",
    }
)

CALLABLES = (
    "devrun.data.transforms",
    "devrun.metrics",
    "timm.data",
    "torchmetrics",
    "torchvision.transforms",
    "transformers.data.data_collator",
)
"""Modules of `REVIEWED` whose callable classes are transforms or metrics."""

FACTORIES = frozenset(
    {
        "peft.mapping_func.get_peft_model",
        "timm.data.dataset_factory.create_dataset",
        "timm.data.transforms_factory.create_transform",
        "timm.models._factory.create_model",
        "torchvision.models._api.get_model",
    }
)
"""Functions by the module that defines them. Their result is checked by the key."""

COLLATES = frozenset(
    {
        "timm.data.loader.fast_collate",
        "torch.utils.data._utils.collate.default_collate",
        "torch.utils.data._utils.collate.default_convert",
        "transformers.data.data_collator.default_data_collator",
    }
)
"""Functions that are themselves what a collate_fn is."""

LOADERS = ("from_config", "from_pretrained")
"""Class methods of transformers' classes below."""
LOADED = frozenset(
    {
        "AutoConfig",
        "AutoImageProcessor",
        "AutoTokenizer",
        "ImageProcessingMixin",
        "PreTrainedConfig",
        "PreTrainedModel",
        "PreTrainedTokenizerBase",
        "PretrainedConfig",  # before transformers 5
        "_BaseAutoModelClass",
    }
)

_WORD = re.compile(r"\w+")
_READERS = re.compile(r"(wds|tfds|hfds|hfids)/", re.IGNORECASE)


def _present(value: Any) -> bool:
    return value is not None


def _no_word(value: Any) -> bool:
    """A kernel of the hub; a mapping gives one for each part of the model."""
    if isinstance(value, (Mapping, list, tuple)):
        parts = value.values() if isinstance(value, Mapping) else value
        return any(map(_no_word, parts))
    return isinstance(value, str) and not _WORD.fullmatch(value)


def _text(pattern: str) -> Callable[[Any], bool]:
    found = re.compile(pattern, re.IGNORECASE)
    return lambda value: isinstance(value, str) and found.search(value) is not None


def _other_than(pattern: str) -> Callable[[Any], bool]:
    """Of a class that a folder names by its name."""
    known = re.compile(pattern)
    return lambda value: (
        value is not None and not (isinstance(value, str) and known.fullmatch(value))
    )


ANY = ""
"""In the place of an argument's name: any text, at any depth."""
REFUSED: dict[str, Callable[[Any], bool]] = {
    ANY: _text(r"^\s*pipe:"),
    "allow_pickle": bool,
    "auto_map": _present,
    "trust_remote_code": bool,
    "weights_only": lambda value: value is not None and not value,
}
"""Argument -> whether this value of it runs or unpickles something, for any callee."""

REFUSED_IN_INSTALLED: dict[str, Callable[[Any], bool]] = {
    # whose readers, such as mmcv.load, choose pickle by the suffix
    ANY: _text(r"^\s*pipe:|\.(pkl|pickle)\s*$"),
}
"""The same, for a callee that an installer put there."""

REFUSED_IN_REVIEWED: dict[str, Callable[[Any], bool]] = {
    # peft
    "auto_mapping": _present,
    "corda_config": _present,
    "eva_config": _present,
    "lora_ga_config": _present,
    "megatron_config": _present,
    "megatron_core": _present,
    # timm: files that its older releases unpickle, readers that open pipes
    "architecture": _text("^local-dir:"),
    "backbone": _text("^local-dir:"),
    "checkpoint_path": _present,
    "class_map": _text(r"\.pkl$"),
    "model_name": _text("^local-dir:"),
    "name": _text(_READERS.pattern),
    "parser": _text(_READERS.pattern),
    "pretrained_cfg": lambda value: isinstance(value, Mapping),
    "pretrained_cfg_overlay": _present,
    "reader": _text(_READERS.pattern),
    "root": _text(r"\.tar$"),
    # torchmetrics: weights, by torch.load
    "feature_extractor_weights_path": _present,
    "model_path": _present,
    # transformers: code of the hub
    "_attn_implementation": _no_word,
    "adapter_kwargs": _present,
    "_configuration_file": _present,
    "allow_all_kernels": bool,
    "attn_implementation": _no_word,
    "config": lambda value: isinstance(value, str),  # of another folder
    "experts_implementation": _no_word,
    "feature_extractor_type": _other_than(r"\w*(ImageProcessor|FeatureExtractor)\w*"),
    "image_processor_type": _other_than(r"\w*(ImageProcessor|FeatureExtractor)\w*"),
    "kernel_config": _present,
    "subfolder": bool,
    # of a tokenizer made of others, each in a folder that was not looked at
    "tokenizer_class": _other_than(r"(?!Rag)\w*(Tokenizer|TokenizerFast|Backend)"),
    "use_kernels": bool,
}

EXTRAS = {
    "timm": "timm",
    "torchmetrics": "metrics",
    "torchvision": "torchvision",
    "transformers": "transformers",
}
"""Package -> the extra of devrun that installs it."""
