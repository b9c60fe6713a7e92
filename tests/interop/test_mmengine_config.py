"""MMEngine-style configs as devrun's: what each section becomes or is refused."""

import re
import textwrap
from pathlib import Path

import pytest

from devrun.config import Config, check_config, where
from devrun.interop.mmengine.translate import translated
from devrun.runners.training import build_training
from devrun.runners.trial import trial
from tests.support.command import command

WHOLE = """
model = dict(type='ImageClassifier', backbone=dict(type='ResNet', depth=18))
data_preprocessor = dict(num_classes=10, mean=[1.0], std=[2.0])
train_pipeline = [dict(type='PackInputs')]
train_dataloader = dict(
    batch_size=16, num_workers=2, drop_last=True,
    dataset=dict(type='CIFAR10', split='train', pipeline=train_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=True))
val_dataloader = dict(
    batch_size=32, num_workers=2,
    dataset=dict(type='CIFAR10', split='test', pipeline=train_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=False))
val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_dataloader = val_dataloader
test_evaluator = [dict(type='Accuracy', topk=(1, )), dict(type='SingleLabelMetric')]
optim_wrapper = dict(
    type='AmpOptimWrapper', dtype='bfloat16', accumulative_counts=2,
    optimizer=dict(type='AdamW', lr=0.001, weight_decay=0.05),
    paramwise_cfg=dict(flat_decay_mult=0.0),
    clip_grad=dict(type='norm', max_norm=5.0))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=True, end=2,
         convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=2)]
train_cfg = dict(by_epoch=True, max_epochs=10, val_interval=3, val_begin=4)
val_cfg = dict()
test_cfg = dict(type='TestLoop')
auto_scale_lr = dict(base_batch_size=128)
default_scope = 'mmpretrain'
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', interval=2, max_keep_ckpts=3,
                    save_best='auto', rule='greater'),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='VisualizationHook', enable=False))
custom_hooks = [
    dict(type='EMAHook', momentum=4e-5, priority='ABOVE_NORMAL'),
    dict(type='SimSiamHook', fix_pred_lr=True, lr=0.05)]
env_cfg = dict(cudnn_benchmark=True,
               mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
               dist_cfg=dict(backend='nccl'))
vis_backends = [dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')]
visualizer = dict(type='UniversalVisualizer', vis_backends=vis_backends)
log_level = 'INFO'
load_from = None
resume = False
randomness = dict(seed=3, deterministic=False)
"""
TINY = """
model = dict(type='devrun.MLP', in_features=16, hidden=[8], num_classes=4)
loss = dict(type='CrossEntropyLoss')
train_dataloader = dict(
    batch_size=8, num_workers=0, collate_fn=dict(type='devrun.default_collate'),
    dataset=dict(type='devrun.SyntheticClassification', num_samples=32),
    sampler=dict(type='DefaultSampler', shuffle=True))
val_dataloader = dict(
    batch_size=8, num_workers=0, collate_fn=dict(type='devrun.default_collate'),
    dataset=dict(type='devrun.SyntheticClassification', num_samples=16, offset=32),
    sampler=dict(type='DefaultSampler', shuffle=False))
val_evaluator = dict(type='devrun.accuracy')
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1))
train_cfg = dict(by_epoch=True, max_epochs=3, val_interval=2)
val_cfg = dict()
default_hooks = dict(
    checkpoint=dict(type='CheckpointHook', interval=3, save_best='accuracy'))
randomness = dict(seed=1)
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text, name="cfg.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


@pytest.fixture
def whole(write):
    made = translated(Config.fromfile(write(WHOLE)))
    check_config(made)
    return made


def test_types_get_the_scope_and_what_is_inside_them_stays(whole):
    assert whole.model.type == "mmpretrain.ImageClassifier"
    assert whole.model.backbone.type == "ResNet"
    assert whole.model.data_preprocessor.mean == [1.0]
    assert whole.data.train.type == "mmpretrain.CIFAR10"
    assert whole.data.train.pipeline[0].type == "PackInputs"


def test_loaders(whole):
    assert whole.data.train_dataloader == {
        "samples_per_gpu": 16,
        "workers_per_gpu": 2,
        "drop_last": True,
        "shuffle": True,
        "collate_fn": {"type": "mmengine.pseudo_collate"},
    }
    assert whole.data.val_dataloader.shuffle is False
    assert whole.data.test.split == "test"


def test_the_update_and_the_optimizer(whole):
    assert whole.optimizer == {
        "type": "AdamW",
        "lr": 0.001,
        "weight_decay": 0.05,
        "paramwise_cfg": {"flat_decay_mult": 0.0},
        "constructor": "mmengine.DefaultOptimWrapperConstructor",
    }
    assert whole.optimizer_config == {
        "precision": "bf16",
        "grad_clip": {"max_norm": 5.0},
        "cumulative_iters": 2,
    }


def test_how_long_when_it_is_evaluated_and_what_is_kept(whole):
    assert whole.runner == {"type": "EpochBasedRunner", "max_epochs": 10}
    assert whole.evaluation == {
        "interval": 3,
        "start": 6,
        "at_end": True,
        "metric": [{"type": "mmpretrain.Accuracy", "topk": (1, 5)}],
        "save_best": "auto",
        "rule": "greater",
    }
    assert whole.checkpoint_config == {"interval": 2, "max_keep_ckpts": 3}


def test_the_hooks(whole):
    schedule, ema, own = whole.custom_hooks
    assert schedule.type == "mmengine.ParamSchedulerHook"
    assert [part.type for part in schedule.schedulers] == [
        "mmpretrain.LinearLR",
        "mmpretrain.CosineAnnealingLR",
    ]
    assert ema == {
        "type": "devrun.EMAHook",
        "warm_up": 1,
        "begin_iter": 0,
        "momentum": pytest.approx(1 - (1 - 4e-5) ** 2),  # an update has two batches
        "priority": "ABOVE_NORMAL",
    }
    assert own.type == "mmpretrain.SimSiamHook"
    assert whole.log_config == {
        "interval": 50,
        "hooks": [{"type": "TextLoggerHook"}, {"type": "TensorboardLoggerHook"}],
    }


def test_the_process(whole):
    assert (whole.seed, whole.deterministic, whole.cudnn_benchmark) == (3, False, True)
    assert whole.dist_params == {"backend": "nccl"}
    assert "auto_scale_lr" not in whole  # it is not enabled
    assert "default_scope" not in whole
    assert "train_pipeline" not in whole


def test_every_value_keeps_its_file_and_line(whole, tmp_path):
    lines = WHOLE.splitlines()
    for key, word in (
        ("optimizer.lr", "lr=0.001"),
        ("optimizer_config.grad_clip.max_norm", "max_norm"),
        ("data.train_dataloader.samples_per_gpu", "batch_size=16"),
        ("evaluation.metric.0.type", "val_evaluator"),
        ("checkpoint_config.interval", "interval=2"),
        ("seed", "seed=3"),
    ):
        *parts, last = key.split(".")
        node = whole
        for part in parts:
            node = node[int(part) if part.isdigit() else part]
        origin = where(node, last).origin
        assert origin.file == str(tmp_path / "cfg.py")
        assert word in lines[origin.line - 1], key


def test_the_evaluator_of_the_split_that_is_tested(write):
    config = Config.fromfile(write(WHOLE))
    metrics = translated(config, "test").evaluation.metric
    assert [one.type for one in metrics] == [
        "mmpretrain.Accuracy",
        "mmpretrain.SingleLabelMetric",
    ]


def test_counts_of_iterations(write):
    text = WHOLE.replace(
        "by_epoch=True, max_epochs=10, val_interval=3, val_begin=4",
        "type='IterBasedTrainLoop', max_iters=4000",
    ).replace("accumulative_counts=2,", "")
    made = translated(Config.fromfile(write(text)))
    check_config(made)
    assert made.runner == {"type": "IterBasedRunner", "max_iters": 4000}
    assert made.evaluation.interval == 1000
    assert "at_end" not in made.evaluation
    assert made.checkpoint_config.by_epoch is False


@pytest.mark.parametrize(
    ("old", "new", "key", "words"),
    [
        ("val_begin=4", "dynamic_intervals=[(5, 1)]", "dynamic_intervals", "interval"),
        ("type='AmpOptimWrapper'", "type='DeepSpeedOptimWrapper'", "type", "Amp"),
        ("type='LinearLR'", "type='ReduceOnPlateauLR'", "type", "ReduceLROnPlateau"),
        ("test_cfg = dict(type='TestLoop')", "test_cfg = dict(type='X')", "type", "X"),
        ("drop_last=True", "batch_sampler=dict(a=1)", "batch_sampler", "buckets"),
        ("drop_last=True", "num_batch_per_epoch=3", "num_batch_per_epoch", "3"),
        ("drop_last=True", "dorp_last=True", "dorp_last", "drop_last"),
        ("momentum=4e-5", "ema_type='StochasticWeightAverage'", "ema_type", "Exp"),
        ("momentum=4e-5", "begin_epoch=3", "begin_epoch", "begin_iter"),
        ("save_best='auto'", "save_best=['a', 'b']", "save_best", "one"),
        ("interval=2", "save_begin=5", "save_begin", "5"),
        ("type='TensorboardVisBackend'", "type='AimVisBackend'", "type", "Wandb"),
        ("by_epoch=True, max_epochs=10, val", "max_iters=9, val", "cumulative", "upd"),
        ("resume = False", "strategy = dict(type='FSDP')", "strategy", "remove it"),
        ("type='TestLoop'", "type='RetrievalTestLoop'", "type", "a TestLoop"),
        ("resume = False", "compile = True", "compile", "translated"),
        ("resume = False", "optim_wraper = 1", "optim_wraper", "optim_wrapper"),
        ("optimizer=dict(type='AdamW', lr=0.001, weight_decay=0.05)", "d=dict()", "opt",
         "several"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused_in_one_line(
    write, capsys, old, new, key, words
):
    assert old in WHOLE
    path = write(WHOLE.replace(old, new, 1))
    status, out, err = command(capsys, "config", path, "--plain")
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    line = re.search(r"cfg\.py:(\d+): ", err)
    text = WHOLE.replace(old, new, 1).splitlines()
    wanted = [n for n, row in enumerate(text, 1) if new[:12] in row]
    assert line
    assert key == "opt" or int(line[1]) in wanted or key == "cumulative"
    assert key in err
    assert re.search(words, err)


@pytest.mark.parametrize("suffix", [".py", ".yaml", ".json"])
def test_a_file_is_written_that_is_the_translation(write, capsys, suffix):
    path = write(WHOLE)
    status, out, _ = command(capsys, "config", path, "-o", f"new{suffix}")
    assert status == 0
    assert f"new{suffix}" in out
    read = Config.fromfile(f"new{suffix}")
    check_config(read)
    same = Config.fromfile(path)
    wanted = translated(same)
    if suffix == ".py":
        assert read == wanted
    assert read.data.train_dataloader == wanted.data.train_dataloader
    assert read.optimizer == wanted.optimizer


def test_it_trains_and_so_does_what_was_written(write, capsys):
    path = write(TINY)
    assert command(capsys, "config", path, "-o", "own.yaml")[0] == 0
    results = []
    for name in (path, "own.yaml"):
        work = f"out-{Path(name).stem}"
        words = ("--device", "cpu", "--work-dir", work, "--no-progress")
        assert command(capsys, "train", name, *words)[0] == 0
        (log,) = Path(work).glob("*.log.json")
        rows = log.read_text()
        results.append(re.findall(r'"(?:loss|accuracy)": ?([\d.]+)', rows))
        # every second epoch, and the last
        assert rows.count('"mode": "val"') == 2
    assert results[0] == results[1] != []
    given = Config.fromfile(path)  # by a program, without the command
    assert build_training(given, progress=False).runner.max_epochs == 3


def test_leftovers_of_mmcv_are_named_and_not_read(write, capsys, caplog):
    path = write(
        TINY + "optimizer = dict(type='Adam', lr=9)\nlog_processor = dict(a=1)"
    )
    status, out, _ = command(capsys, "config", path, "--plain")
    assert status == 0
    assert Config.fromstring(out, ".py").optimizer.lr == 0.1
    assert "not used by devrun: optimizer (" in caplog.text
    assert "log_processor (" in caplog.text


def test_a_program_tries_a_config_of_that_style(write, tmp_path):
    cfg = Config.fromfile(write(TINY + "work_dir = 'kept'"))
    before = set(tmp_path.rglob("*"))
    with trial(cfg, 3, samples=2, device="cpu", progress=False) as training:
        training.run()
        assert training.runner.iter == 3
        assert training.loaders[0].batch_size == 2
    assert set(tmp_path.rglob("*")) == before
    assert "optim_wrapper" in cfg


def test_resume(write):
    def resumed(text):
        return translated(Config.fromfile(write(TINY + text)))

    assert resumed("resume = True").resume_from == "auto"
    both = resumed("resume = True\nload_from = 'a.pth'")
    assert both.resume_from == "a.pth"
    assert both.get("load_from") is None
    assert resumed("load_from = 'a.pth'").load_from == "a.pth"


def test_a_base_of_a_package_is_read_and_the_package_is_not_imported(
    write, capsys, tmp_path, monkeypatch
):
    configs = tmp_path / "site" / "somepackage" / ".mim" / "configs"
    configs.mkdir(parents=True)
    (configs.parents[1] / "__init__.py").write_text("raise SystemExit(77)")
    (configs / "base.py").write_text(TINY)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    path = write("_base_ = 'somepackage::base.py'\ntrain_cfg = dict(max_epochs=9)")
    made = translated(Config.fromfile(path))
    assert made.runner.max_epochs == 9
    assert made.optimizer.lr == 0.1
    status, _, err = command(capsys, "config", write("_base_ = 'nopackage::a.py'"))
    assert status == 2
    assert "cfg.py:1: _base_: 'nopackage::a.py' is of the package 'nopackage'" in err


@pytest.mark.parametrize(
    "line",
    ["with read_base():\n    x = 1", "model = dict(type=print)", "import os\nos.x = 1"],
)
def test_what_a_lazy_config_has_is_refused_without_trust(write, capsys, line):
    status, out, err = command(capsys, "config", write(line + "\n" + TINY))
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "--trust-config" in err or "not defined" in err
