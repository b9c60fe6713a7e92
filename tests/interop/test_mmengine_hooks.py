"""Hooks of MMEngine and MMPretrain, beside MMEngine's own runner."""

from pathlib import Path

import pytest
import torch

from devrun.checkpoint import read_checkpoint
from tests.interop.engine_runs import MARKS, by_mmengine, classifier, rows, train
from tests.support.strict import zip_strict

pytestmark = MARKS

NOTE = """
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

CALLS = []


@HOOKS.register_module(force=True)
class NoteHook(Hook):
    def _before_epoch(self, runner, mode='train'):
        CALLS.append((mode, 'epoch begins'))

    def _after_epoch(self, runner, mode='train'):
        CALLS.append((mode, 'epoch over'))

    def before_train(self, runner):
        CALLS.append(len(runner.train_dataloader.dataset))

    def before_val(self, runner):
        CALLS.append('before val')

    def after_val(self, runner):
        CALLS.append('after val')
"""


def hooked(hooks):
    return classifier() + f"custom_hooks = [{hooks}]\n"


def losses(work="out"):
    return [row["loss"] for row in rows("train", work)]


def test_precise_bn_has_the_statistics_of_mmpretrains(folder):
    text = hooked("dict(type='PreciseBNHook', num_samples=24, priority='ABOVE_NORMAL')")
    assert train(text) == 0
    theirs, _, results = by_mmengine(text)
    assert losses() == pytest.approx(theirs, rel=1e-5)
    wanted = torch.load("theirs/epoch_2.pth", weights_only=False)["state_dict"]
    found = read_checkpoint("out/checkpoints/step-00000010")["model"]
    names = [name for name in wanted if "running" in name]
    assert names
    for name in names:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-5)
    for mine, result in zip_strict(rows("val"), results):
        assert {key: mine[key] for key in result} == pytest.approx(result)


SWITCH = """dict(type='SwitchRecipeHook', schedule=[dict(
    action_epoch=2, batch_augments=None,
    train_pipeline=[dict(type='RandomFlip', prob=1.0), dict(type='PackInputs')],
    loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1))])"""


def test_another_recipe_from_an_epoch_on(folder):
    text = hooked(SWITCH).replace(
        "num_workers=0", "num_workers=1, persistent_workers=True", 1
    )
    assert train(text) == 0
    wanted, _, _ = by_mmengine(text)
    assert losses() == pytest.approx(wanted, rel=1e-5)
    assert train(hooked(""), work="plain") == 0
    assert losses("plain")[:5] == losses()[:5]
    assert losses("plain")[5:] != losses()[5:]


def test_a_recipe_is_that_of_the_epoch_which_a_run_resumes_in(folder):
    text = hooked(SWITCH).replace("max_epochs=2", "max_epochs=3")
    assert train(text) == 0
    for epochs in (1, 2):
        saved = f"out/checkpoints/step-{5 * epochs:08}"
        assert train(text, "--resume-from", saved, work=f"from-{epochs}") == 0
        assert losses(f"from-{epochs}") == losses()[5 * epochs :]


RETRIEVAL = """
gallery = dict(batch_size=8, num_workers=0, dataset=dict(
    type='CIFAR10', data_root='data', split='train', pipeline=pipeline),
    sampler=dict(type='DefaultSampler', shuffle=False))
model = dict(
    type='ImageToImageRetriever', prototype=gallery, image_encoder=[
        model['backbone'], dict(type='GlobalAveragePooling')],
    head=dict(type='ArcFaceClsHead', num_classes=10, in_channels=32))
val_evaluator = dict(type='RetrievalRecall', topk=(1, 5))
default_hooks['checkpoint']['rule'] = 'greater'
custom_hooks = [dict(type='PrepareProtoBeforeValLoopHook')]
"""


def test_prototypes_are_prepared_before_each_evaluation(folder):
    text = classifier() + RETRIEVAL
    assert train(text) == 0
    wanted, _, results = by_mmengine(text)
    assert losses() == pytest.approx(wanted, rel=1e-5)
    for mine, result in zip_strict(rows("val"), results):
        assert result
        assert {key: mine[key] for key in result} == pytest.approx(result)
    (best,) = Path("out/checkpoints").glob("best_retrieval_Recall_1_*")
    assert best.is_dir()


def test_prototypes_that_are_missing_are_said(folder, capsys):
    text = classifier() + RETRIEVAL + "model['prototype'] = 'none.pth'\n"
    assert train(text) == 4
    error = capsys.readouterr().err.splitlines()[-1]
    assert "PrepareProtoBeforeValLoopHook needs 'none.pth'" in error


def register(text):
    names = {}
    exec(text, names)  # noqa: S102 - MMEngine, whose class it is, may not be here
    return names


def test_the_stages_of_an_evaluation_and_those_of_all_modes(folder):
    calls = register(NOTE)["CALLS"]
    assert train(hooked("dict(type='NoteHook')")) == 0
    epoch = [
        ("train", "epoch begins"),
        ("train", "epoch over"),
        "before val",
        ("val", "epoch begins"),
        ("val", "epoch over"),
        "after val",
    ]
    assert calls == [40, *epoch, *epoch]


@pytest.mark.parametrize("stage", ["after_val_epoch", "before_val_iter", "_after_iter"])
def test_a_stage_that_devrun_has_not_is_refused_by_name(folder, capsys, stage):
    register(NOTE.replace("before_val", stage).replace("NoteHook", "OtherHook"))
    assert train(hooked("dict(type='OtherHook')")) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    stage = stage.replace("_after", "after_val")
    assert f"OtherHook takes part in {stage}" in error
