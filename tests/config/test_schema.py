import pytest

from devrun.config import Config, check_config
from devrun.config.schema import unused
from devrun.errors import ConfigError

GOOD = """\
model:
  type: Net
data:
  samples_per_gpu: 4
  train: {type: Digits}
  val_dataloader: {shuffle: false}
runner: {type: EpochBasedRunner, max_epochs: 5}
"""


def problem(cfg):
    with pytest.raises(ConfigError) as caught:
        check_config(cfg)
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("max_epochs: 3", "max_epochs: unknown key; it belongs to the section runner"),
        ("optimzer: {}", "c.yaml:8: optimzer: unknown key; did you mean 'optimizer'?"),
        (
            "total_epochs: 5",
            "c.yaml:8: total_epochs: no longer read; write runner = dict",
        ),
        ("seed: x", "c.yaml:8: seed: takes an integer from 0 to 2**63 - 1, not 'x'"),
        ("seed: true", "seed: takes an integer from 0 to 2**63 - 1, not True"),
        ("seed: 1.0", "seed: takes an integer from 0 to 2**63 - 1, not 1.0"),
        ("workflow: [[train]]", "workflow: takes a list of phases and counts from 1"),
        ("workflow: [[train, 0]]", "workflow: takes a list of phases"),
        ("optimizer: SGD", "optimizer: takes a dict, not 'SGD'"),
        ("model: 3", "given twice"),
        (
            "checkpoint_config: {intervall: 1}",
            "checkpoint_config.intervall: unknown key; did you mean 'interval'?",
        ),
        (
            "optimizer_config: {grad_clip: {max_nrm: 1}}",
            "optimizer_config.grad_clip.max_nrm: unknown key; did you mean 'max_norm'?",
        ),
        (
            "optimizer_config: {grad_clip: 5}",
            "optimizer_config.grad_clip: takes a dict, not 5",
        ),
        (
            "optimizer_config: {cumulative_iters: 0}",
            "takes an integer of at least 1, not 0",
        ),
        (
            "log_config: {interval: 1, hooks: x}",
            "log_config.hooks: takes a list, not 'x'",
        ),
        ("lr_config: {policy: 3}", "lr_config.policy: takes text, not 3"),
        ("device: [1]", "device: takes text or a dict, not a list of 1 items"),
        ("cudnn_benchmark: 1", "takes true or false, not 1"),
        ("custom_hooks: {a: 1}", "custom_hooks: takes a list"),
        ("train_pipelin_e2: 1", "unknown key"),
    ],
)
def test_a_wrong_key_or_value_is_one_line_with_its_place(load, change, message):
    if message == "given twice":
        with pytest.raises(ConfigError, match=message):
            load(GOOD + change, "c.yaml")
    else:
        assert message in problem(load(GOOD + change + "\n", "c.yaml"))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("data.sample_per_gpu", 1, "did you mean 'samples_per_gpu'?"),
        ("data.samples_per_gpu", "x", "takes an integer of at least 1, not 'x'"),
        ("data.val_dataloader.shufle", True, "did you mean 'shuffle'?"),
        ("runner.max_epoch", 3, "did you mean 'max_epochs'?"),
        ("optimiser.lr", 0.1, "did you mean 'optimizer'?"),
        ("data", None, "data: takes a dict, not None"),
    ],
)
def test_a_misspelt_option_of_the_command_line_is_caught(load, path, value, message):
    cfg = load(GOOD, "c.yaml")
    cfg.merge_from_dict({path: value})
    found = problem(cfg)
    assert found.startswith(f"command line: {path.split('.')[0]}")
    assert message in found


def test_classes_of_others_judge_their_own_arguments(load):
    check_config(
        load(
            """\
            runner = dict(type='MyRunner', anything=1)
            checkpoint_config = dict(type='MyHook', where='x')
            optimizer_config = dict(type='MyOptimizerHook', update_interval=4)
            """
        )
    )
    cfg = load("runner = dict(type='IterBasedRunner', anything=1)")
    assert "runner.anything: unknown key" in problem(cfg)


def test_a_variable_that_nothing_uses_is_refused(load):
    cfg = load("model = dict(type='Net')\n\noptimizr = dict(type='SGD')\n")
    assert problem(cfg).startswith(
        "cfg.py:3: optimizr: unknown key; did you mean 'optimizer'?"
    )


def test_a_file_used_as_a_shelf_may_hold_more_than_is_taken(write):
    write("shelf.py", "small = dict(w=1)\nlarge = dict(w=2)\n")
    path = write("cfg.py", "_base_ = 'shelf.py'\nmodel = {{ _base_.large }}\n")
    check_config(Config.fromfile(path))


def test_a_key_that_does_nothing_may_be_a_variable_of_the_file():
    text = "paramwise_cfg = dict(norm_decay_mult=0)\nchannel_cfg = dict(n=1)\n"
    cfg = Config.fromstring(text, ".py")
    check_config(cfg)
    assert unused(cfg) == ["paramwise_cfg"]
    text += "optimizer = dict(type='SGD', lr=1, paramwise_cfg=paramwise_cfg)\n"
    assert unused(Config.fromstring(text, ".py")) == []
