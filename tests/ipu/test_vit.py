"""The recipe of ViT-B/16 on a pipeline of IPUs, with small images and layers."""

import copy
import logging
from pathlib import Path

import pytest
import torch

from devrun.config import Config
from devrun.devices.ipu.split import split_of
from devrun.hooks import Hook
from devrun.runners.training import build_training

RECIPE = (
    Path(__file__).parents[2]
    / "configs/vision_transformer/vit-base-p16_ft-4xb544_in1k-224_ipu.yaml"
)
IMAGES = 17 * 32 * 4
TINY = {"img_size": 16, "patch_size": 8, "embed_dim": 8, "num_heads": 2}


class Losses(Hook):
    def __init__(self):
        self.seen, self.samples = [], []

    def after_train_iter(self, runner):
        self.seen.append(float(runner.outputs["loss"]))
        self.samples.append(int(runner.outputs["num_samples"]))
        self.blocks = split_of(runner.model)


def recipe(tmp_path, device, updates=2, **changes):
    """The recipe with a tiny model, synthetic images and one learning rate."""
    cfg = Config.fromfile(RECIPE)
    data = {"type": "SyntheticImages", "shape": (3, 16, 16), "num_classes": 10}
    cfg.merge_from_dict(
        {
            "work_dir": str(tmp_path / "work"),
            "device": device,
            **{f"model.{name}": value for name, value in TINY.items()},
            "model.num_classes": 10,
            "data.workers_per_gpu": 0,
            "data.train": {"_delete_": True, **data, "num_samples": IMAGES},
            "data.val": {"_delete_": True, **data, "num_samples": 10, "offset": IMAGES},
            "data.val_dataloader.workers_per_gpu": 0,
            "runner.max_iters": updates,
            "lr_config": {"_delete_": True, "policy": "fixed"},
            "evaluation.interval": updates,
            "checkpoint_config.interval": updates,
            "log_config.interval": 1,
            **changes,
        }
    )
    return cfg


def train(cfg):
    """(runner, the hook that watched), after the run."""
    losses = Losses()
    training = build_training(cfg)
    training.runner.register_hook(losses)
    try:
        training.run()
    finally:
        training.runner.close()
    return training.runner, losses


EMULATED = {"_delete_": True, "type": "ipu", "emulate": True}
EXACT = {"fp16": None, "model.dropout": 0.0}


def test_the_recipe_is_a_pipeline_of_four_in_four_replicas(tmp_path, caplog):
    logging.getLogger("devrun").addHandler(caplog.handler)
    cfg = recipe(tmp_path, EMULATED)
    before = copy.deepcopy(cfg.to_dict())
    runner, watched = train(cfg)
    losses, blocks = watched.seen, watched.blocks
    assert cfg.to_dict() == before
    assert watched.samples == [2176, 2176]
    assert losses[1] < losses[0] < 2.4  # of ten classes
    text = caplog.text
    assert "micro-batch 17 x accumulation 32 x replicas 4 = 2176 samples" in text
    begins = ["patch_embed", "blocks.3", "blocks.6", "blocks.9"]
    assert blocks == [(name, ipu) for ipu, name in enumerate(begins)]
    assert "accuracy" in text
    weights = runner.model.state_dict()
    assert {t.dtype for t in weights.values()} == {torch.float16}
    assert "blocks.11.mlp.fc2.weight" in weights


def test_its_losses_are_those_of_the_cpu_at_the_same_global_batch(tmp_path):
    names = ["patch_embed", "blocks.1", "blocks.2", "blocks.3"]
    edges = [{"layer_to_call": name, "ipu_id": i} for i, name in enumerate(names)]
    shallow = {"model.depth": 4, "ipu.train_ckpt_nodes": []}
    split = {**shallow, "ipu.train_split_edges": edges}
    cpu = {"optimizer_config.cumulative_iters": 128, **shallow}
    _, ours = train(recipe(tmp_path / "a", EMULATED, **EXACT, **split))
    _, plain = train(recipe(tmp_path / "b", "cpu", **EXACT, **cpu))
    assert ours.seen == pytest.approx(plain.seen, rel=1e-5)
