"""Parts of other packages: their factories, their keywords, their data sets."""

import pytest
import torch

from devrun.data.build import build_loaders
from devrun.errors import ConfigError, ConfigTypeError
from devrun.registry import COLLATE_FUNCTIONS, DATASETS, MODELS, Registry
from tests.support.packages import let_torchvision_load
from tests.support.strict import zip_strict


@pytest.fixture(autouse=True, scope="session")
def loads():
    let_torchvision_load()


TINY = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 16,
}
AUTO = "transformers.AutoModelForSequenceClassification"

THINGS = Registry("thing")


def hides(function):
    """A decorator that takes anything and shows what it was given."""
    import functools

    @functools.wraps(function)
    def wrapped(self, **kwargs):
        function(self, width=kwargs.pop("width", 1))
        vars(self).update(kwargs)

    return wrapped


class Parent:
    def __init__(self, depth=1, **kwargs):
        self.depth, self.rest = depth, kwargs


@THINGS.register_module()
class Child(Parent):
    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.width = width


@THINGS.register_module()
class Hidden:
    known = None

    @hides
    def __init__(self, width=1):
        self.width = width


def test_keywords_that_reach_a_parent_or_pass_a_decorator_are_taken():
    child = THINGS.build({"type": "Child", "width": 2, "depth": 3, "other": 4})
    assert (child.width, child.depth, child.rest) == (2, 3, {"other": 4})
    hidden = THINGS.build({"type": "Hidden", "width": 2, "known": 5, "extra": 6})
    assert (hidden.width, hidden.known, hidden.extra) == (2, 5, 6)


@pytest.fixture
def folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(**TINY, num_labels=5)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    return tmp_path


def test_models_of_a_folder_and_of_a_config_are_built(folder):
    place = {"pretrained_model_name_or_path": str(folder)}
    for owner in (AUTO, "transformers.BertForSequenceClassification"):
        model = MODELS.build({"type": f"{owner}.from_pretrained", **place})
        assert model.config.num_labels == 5
    nested = {"type": "transformers.AutoConfig.from_pretrained", **place}
    cfg = {"type": f"{AUTO}.from_config", "config": {**nested, "num_labels": 3}}
    assert MODELS.build(cfg).classifier.out_features == 3
    with pytest.raises(ConfigTypeError, match="made no dataset"):
        DATASETS.build({"type": f"{AUTO}.from_pretrained", **place})


def pairs(samples, scale=1):
    inputs, labels = zip_strict(*samples)
    return torch.stack(inputs) * scale, torch.as_tensor(labels)


class Stacked:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, samples):
        return pairs(samples, self.scale)


@pytest.fixture
def collates():
    before = dict(COLLATE_FUNCTIONS.module_dict)
    COLLATE_FUNCTIONS.register_module(module=pairs)
    COLLATE_FUNCTIONS.register_module(module=Stacked)
    yield
    COLLATE_FUNCTIONS.module_dict = before


@pytest.mark.parametrize(
    ("collate", "scale", "workers"),
    [
        ("pairs", 1, 0),
        ({"type": "pairs", "scale": 2}, 2, 0),
        ({"type": "pairs", "scale": 2}, 2, 1),
        ({"type": "Stacked", "scale": 3}, 3, 0),
        ("default_collate", 1, 0),
        ({"type": "torch.utils.data.default_collate"}, 1, 0),
        (pairs, 1, 0),
        (None, 1, 0),
    ],
)
def test_a_collate_function_is_built(collates, collate, scale, workers):
    train = {"type": "SyntheticClassification", "num_samples": 4}
    data = {
        "train": train,
        "samples_per_gpu": 4,
        "shuffle": False,
        "workers_per_gpu": workers,
    }
    plain = next(iter(build_loaders(data, ["train"])["train"]))
    loader = build_loaders({**data, "collate_fn": collate}, ["train"])["train"]
    batch = next(iter(loader))
    assert torch.equal(batch[0], plain[0] * scale)
    assert torch.equal(batch[1], plain[1])


@pytest.mark.parametrize(
    ("collate", "reason"),
    [
        ({"type": "pairs", "scael": 2}, "unexpected keyword argument 'scael'"),
        ({"scale": 2}, "takes a name or a dict with a type"),
        (3, "takes a name or a dict with a type, not int 3"),
        ("pears", "not in the collate function registry; did you mean 'pairs'"),
    ],
)
def test_a_collate_function_that_cannot_be_built_is_said_before_training(
    collates, collate, reason
):
    data = {
        "train": {"type": "SyntheticClassification", "num_samples": 4},
        "samples_per_gpu": 2,
        "collate_fn": collate,
    }
    with pytest.raises(ConfigError, match=reason):
        build_loaders(data, ["train"])
