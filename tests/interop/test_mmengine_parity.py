"""Keys of MMEngine-style configs: devrun's run beside that of MMEngine's own runner."""

from pathlib import Path

import pytest

from tests.interop.engine_runs import (
    MARKS,
    MODELS,
    by_mmengine,
    classifier,
    rows,
    train,
)
from tests.support.strict import zip_strict

pytestmark = MARKS

CASES = {
    "chained schedulers, scaled": """
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=2, begin=1, end=3,
         convert_to_iter_based=True),
    dict(type='MultiStepLR', milestones=[7, 11], by_epoch=False),
    dict(type='PolyLR', begin=3, end=4, eta_min=1e-5, convert_to_iter_based=True)]
train_cfg = dict(by_epoch=True, max_epochs=4)
auto_scale_lr = dict(enable=True, base_batch_size=64)
env_cfg = dict(
    cudnn_benchmark=True, dist_cfg=dict(backend='gloo'),
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0))
randomness = dict(seed=3, deterministic=True, diff_rank_seed=True)
vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(type='UniversalVisualizer', vis_backends=vis_backends)
""",
    "momentum and weight decay": """
optim_wrapper = dict(
    type='OptimWrapper', clip_grad=dict(type='value', clip_value=0.01),
    optimizer=dict(type='SGD', lr=0.1, momentum=0.9, weight_decay=0.01))
param_scheduler = [
    dict(type='CosineAnnealingMomentum', T_max=2, eta_min=0.5),
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=2, end=7),
    dict(type='ConstantParamScheduler', param_name='weight_decay', factor=0.5, end=1)]
train_dataloader['batch_size'] = 12
train_dataloader['drop_last'] = True
train_cfg = dict(by_epoch=True, max_epochs=5, val_begin=3, val_interval=2)
""",
    "average and metrics": """
custom_hooks = [
    dict(type='EMAHook', momentum=0.3, update_buffers=True, begin_iter=3)]
val_evaluator = dict(type='Evaluator', metrics=[
    dict(type='Accuracy', topk=(1, 5), thrs=(0., 0.1)),
    dict(type='SingleLabelMetric'), dict(type='Accuracy', topk=(2, ), prefix='b')])
val_dataloader['batch_size'] = 3
""",
    "average now and then": """
custom_hooks = [dict(type='mmengine.EMAHook', momentum=0.3, interval=2)]
""",
    "layers": """
optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=0.01, weight_decay=0.05),
    constructor='LearningRateDecayOptimWrapperConstructor',
    paramwise_cfg=dict(layer_decay_rate=0.5, norm_decay_mult=0., bias_lr_mult=2.))
""",
}


def losses(work="out"):
    return [row["loss"] for row in rows("train", work)]


@pytest.mark.parametrize("case", [*MODELS, *CASES])
def test_losses_rates_and_results_are_those_of_mmengine(folder, case):
    name = case if case in MODELS else "vit" if case == "layers" else "resnet"
    text = classifier(name) + CASES.get(case, "")
    assert train(text) == 0
    wanted, rates, results = by_mmengine(text)
    assert losses() == pytest.approx(wanted, rel=1e-5)
    found = [row["lr"] for row in rows("train")]
    assert found == pytest.approx(rates, rel=1e-3, abs=6e-6)  # as the log has them
    assert len(results) > 1
    for mine, theirs in zip_strict(rows("val"), results):
        assert {key: mine[key] for key in theirs} == pytest.approx(theirs)


def test_an_update_of_several_batches_has_the_rate_of_its_last(folder):
    text = classifier() + (
        "train_dataloader['batch_size'] = 5\n"
        "optim_wrapper['accumulative_counts'] = 2\n"
        "auto_scale_lr = dict(enable=True, base_batch_size=10)\n"
        "param_scheduler = [\n"
        "    dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=6),\n"
        "    dict(type='CosineAnnealingLR', begin=1, end=2,\n"
        "         convert_to_iter_based=True)]\n"
    )
    assert train(text) == 0
    wanted, rates, results = by_mmengine(text)
    assert len(wanted) == 16
    pairs = [(a + b) / 2 for a, b in zip_strict(wanted[::2], wanted[1::2])]
    assert losses() == pytest.approx(pairs, rel=1e-5)
    found = [row["lr"] for row in rows("train")]
    assert found == pytest.approx(rates[1::2], abs=6e-6)
    for mine, theirs in zip_strict(rows("val"), results):
        assert {key: mine[key] for key in theirs} == pytest.approx(theirs)


LOOP = """
train_dataloader['sampler'] = dict(type='InfiniteSampler', shuffle=False)
train_cfg = dict(type='IterBasedTrainLoop', max_iters=7, val_interval=3)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=3),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=3, end=7)]
default_hooks = dict(logger=dict(type='LoggerHook', interval=1), checkpoint=dict(
    type='CheckpointHook', interval=4, by_epoch=False))
load_from = 'start.pth'
"""


def test_checkpoints_of_mmengines_runner_are_read(folder):
    whole, _, _ = by_mmengine(classifier())
    Path("theirs/epoch_1.pth").rename("start.pth")
    words = ("start.pth", "--allow-pickle", "start.pth")  # for the log that is in it
    assert train(classifier(), "--resume-from", *words, work="resumed") == 0
    assert losses("resumed") == pytest.approx(whole[5:], rel=1e-5)
    assert train(classifier() + LOOP, "--load-from", *words) == 0
    # MMEngine's own reader refuses its file on this torch: it gets the weights alone
    import torch

    weights = torch.load("start.pth", weights_only=False)["state_dict"]
    torch.save({"state_dict": weights}, "start.pth")
    wanted, _, _ = by_mmengine(classifier() + LOOP)
    assert losses() == pytest.approx(wanted, rel=1e-5)
