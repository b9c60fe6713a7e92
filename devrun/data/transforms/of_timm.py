"""The transforms that timm has for a model's own data config."""

from __future__ import annotations

from typing import Any

from devrun.blame import cause_of
from devrun.errors import ConfigError, nearest
from devrun.registry import TRANSFORMS


@TRANSFORMS.register_module()
class TimmTransform:
    """timm's `create_transform` with the `resolve_data_config` of one of its models.

    The size, the crop, the interpolation and the mean and deviation are those that the
    model was trained with; nothing is downloaded for it.

    Args:
        model: its name, as `timm.create_model` takes it, maybe with `.TAG`.
        is_training: the transform for training, with its random crops and flips.
        options: of `timm.data.create_transform`, such as `auto_augment`, `re_prob`,
            `color_jitter`, or `input_size` and other values of the data config.

    Raises:
        ConfigError: timm is not installed, or has no such model or option.
    """

    def __init__(self, model: str, is_training: bool = False, **options: Any) -> None:
        try:
            from timm.data import create_transform, resolve_data_config
            from timm.models import get_pretrained_cfg, list_models
        except ImportError as error:
            raise ConfigError(
                "TimmTransform needs timm: pip install 'devrun[timm]'"
            ) from error
        architecture = model.partition(".")[0]
        if architecture not in list_models():
            raise ConfigError.of(
                "model",
                f"{model!r} is not one of timm; {nearest(model, list_models())}",
            )
        try:
            facts = get_pretrained_cfg(model)
            known = {} if facts is None else facts.to_dict()
            config = resolve_data_config(
                {}, pretrained_cfg=known or {"input_size": None}
            )
            self.transform = create_transform(
                **{**config, "is_training": is_training, **options}
            )
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            raise ConfigError(f"timm refuses it: {cause_of(error)}") from error

    def __call__(self, image: Any) -> Any:
        return self.transform(image)

    def __repr__(self) -> str:
        return f"TimmTransform({self.transform})"
