"""The `data` section of a config becomes loaders, in MMCV's words."""

from typing import Any

import pytest
import torch
from torch.utils.data import (
    Dataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from devrun.data import build_dataloader, build_dataset, build_loaders
from devrun.data.transforms import Compose
from devrun.errors import ConfigError
from tests.data.helpers import Draws

SET = {"type": "SyntheticClassification", "num_samples": 20}


def section(**more):
    return {
        "samples_per_gpu": 4,
        "workers_per_gpu": 0,
        "train": SET,
        "val": SET,
        **more,
    }


def test_train_shuffles_and_val_does_not():
    train, val = build_loaders(section(drop_last=True)).values()
    assert isinstance(train.sampler, RandomSampler)
    assert isinstance(val.sampler, SequentialSampler)
    assert (train.batch_size, train.drop_last, val.drop_last) == (4, True, False)


def test_sections_of_a_loader_override_the_common_keys():
    data = section(
        train_dataloader={"samples_per_gpu": 5, "shuffle": False},
        val_dataloader={"samples_per_gpu": 10, "drop_last": True},
    )
    train, val = build_loaders(data).values()
    assert (train.batch_size, type(train.sampler)) == (5, SequentialSampler)
    assert (val.batch_size, val.drop_last) == (10, True)


def test_torchs_names_of_the_two_sizes_are_taken_too():
    data = {"batch_size": 3, "num_workers": 1, "train": SET}
    loader = build_loaders({**data, "train_dataloader": {"num_workers": 0}}, ["train"])
    assert (loader["train"].batch_size, loader["train"].num_workers) == (3, 0)


def test_a_data_set_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"no data set in data\.val"):
        build_loaders({"samples_per_gpu": 4, "train": SET})
    with pytest.raises(ConfigError, match="did you mean 'train'"):
        build_loaders(section(), ["trian"])


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"sample_per_gpu": 4}, "'sample_per_gpu'.*did you mean 'samples_per_gpu'"),
        ({"train_dataloader": {"shufle": 1}}, "'shufle'.*did you mean 'shuffle'"),
        ({"samples_per_gpu": 0}, "samples_per_gpu must be an int of at least 1: 0"),
        ({"workers_per_gpu": -1}, "workers_per_gpu must be an int of at least 0"),
        ({"samples_per_gpu": "4"}, "samples_per_gpu must be an int"),
    ],
)
def test_what_cannot_be_used_is_told(more, told):
    with pytest.raises(ConfigError, match=told):
        build_loaders(section(**more))


def test_a_data_set_without_a_length_is_told_what_to_do():
    class Endless(Dataset[int]):
        def __getitem__(self, index):
            return index

    with pytest.raises(ConfigError, match=r"Endless has no length: give it a __len__"):
        build_dataloader(Endless(), 2)


def test_a_sampler_comes_by_dotted_path():
    cfg = {
        "type": "torch.utils.data.WeightedRandomSampler",
        "weights": [1.0, 0.0],
        "num_samples": 6,
    }
    loader = build_dataloader(Draws(2), 6, sampler_cfg=cfg)
    assert isinstance(loader.sampler, WeightedRandomSampler)
    assert next(iter(loader))[:, 0].tolist() == [0] * 6


def test_a_sampler_is_told_of_the_data_set():
    cfg = {"type": "torch.utils.data.distributed.DistributedSampler", "shuffle": False}
    assert len(build_dataloader(Draws(), 4, sampler_cfg=cfg)) == 10


def test_anything_but_a_sampler_is_refused():
    with pytest.raises(ConfigError, match="cannot be the type of a sampler"):
        build_dataloader(Draws(), sampler_cfg={"type": "torch.nn.Linear"})


class Kept(Dataset[Any]):
    def __init__(self, pipeline):
        self.pipeline = pipeline

    def __len__(self):
        return 1


def test_an_own_data_set_gets_its_pipeline_as_a_function():
    listed = [{"type": "Normalize", "mean": [1.0], "std": [2.0]}]
    made = build_dataset({"type": Kept, "pipeline": listed}).pipeline
    assert made(torch.full((1, 2, 2), 5.0)).unique() == 2.0
    (again,) = Compose(made)  # as code for MMCV goes over it
    assert type(again).__name__ == "Normalize"
    assert listed[0]["type"] == "Normalize"


def test_a_pipeline_of_another_registry_stays_as_it_is():
    listed = [{"type": "LoadMyself"}]
    assert build_dataset({"type": Kept, "pipeline": listed}).pipeline == listed
