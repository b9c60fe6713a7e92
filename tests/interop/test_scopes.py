"""Names of other packages' registries: which answers, and what is said if none."""

import pytest

from devrun.errors import ConfigError, UnknownNameError
from devrun.registry import DATASETS, HOOKS, MODELS, OPTIMIZERS
from devrun.scopes import within
from tests.support import zygote

MODEL = {
    "type": "ImageClassifier",
    "backbone": {"type": "ResNet_CIFAR", "depth": 18, "out_indices": (3,)},
    "neck": {"type": "GlobalAveragePooling"},
    "head": {
        "type": "LinearClsHead",
        "num_classes": 4,
        "in_channels": 512,
        "loss": {"type": "CrossEntropyLoss"},
    },
}


def changed(**parts):
    return {**MODEL, **parts}


def test_a_name_with_its_scope_is_built_by_their_registry(mmcls):
    model = MODELS.build({**MODEL, "type": "mmcls.ImageClassifier"})
    assert type(model).__module__ == "mmcls.models.classifiers.image"
    assert type(model.backbone).__name__ == "ResNet_CIFAR"


def test_within_a_default_scope_theirs_wins_and_ours_is_by_name(mmcls):
    ours = DATASETS.resolve("CIFAR10")
    with within("mmcls"):
        assert DATASETS.resolve("CIFAR10").__module__ == "mmcls.datasets.cifar"
        assert DATASETS.resolve("devrun.CIFAR10") is ours
        assert OPTIMIZERS.resolve("Lamb").__module__ == "mmcls.core.optimizers.lamb"
        assert HOOKS.resolve("CheckpointHook").__module__ == "devrun.hooks.checkpoint"
        assert DATASETS.resolve("SyntheticImages").__module__.startswith("devrun.")
    assert DATASETS.resolve("CIFAR10") is ours


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (
            {"type": "ImageClasifier"},
            "and not in mmcls; did you mean 'ImageClassifier'",
        ),
        (changed(backbone={"type": "ResNett"}), "did you mean 'ResNet'"),
        (changed(bakbone=1), "did you mean 'backbone'"),
    ],
)
def test_a_wrong_name_says_where_it_was_looked_up(mmcls, section, said):
    with within("mmcls"), pytest.raises(ConfigError) as caught:
        MODELS.build(section)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_their_models_say_who_has_them():
    with pytest.raises(UnknownNameError, match="mmcls|mmpretrain"):  # what is here
        MODELS.build(MODEL)


def test_a_scope_whose_package_is_missing_says_what_fits(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    from devrun import interop

    interop.attach.cache_clear()
    with pytest.raises(ConfigError, match="mmpretrain.*not installed.*mmengine 0.10"):
        MODELS.build({"type": "mmpretrain.ImageClassifier"})


def test_our_own_names_import_nothing_of_theirs():
    code = (
        "import sys; from devrun.registry import MODELS;"
        "MODELS.build({'type': 'MLP'});"
        "print([m for m in sys.modules if m.startswith(('mm', 'devrun.interop'))])"
    )
    done = zygote.run(["-c", code])
    assert done.stdout.strip() in ("[]", "['mmap']"), done.stderr
