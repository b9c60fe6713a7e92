"""Values that no run can use: one line with file, line and key, before it starts."""

import copy
import math

import pytest
import yaml

from devrun.config import Config, check_config
from devrun.errors import ConfigError
from tests.cli.conftest import CONFIG

NAN, INF, LONG = math.nan, math.inf, 10**400
WRONG = {
    "optimizer_config.grad_clip.max_norm": [-1, 0, NAN],
    "optimizer_config.loss_scale": [NAN, INF, {"init_scale": NAN}],
    "optimizer_config.cumulative_iters": [LONG],
    "fp16.loss_scale": [NAN, INF],
    "lr_config.gamma": [NAN, INF, LONG],
    "optimizer.lr": [NAN, INF, LONG, -LONG],
    "optimizer.betas": [[0.9, NAN], [LONG, 0.9]],
    "optimizer.paramwise_cfg.bias_lr_mult": [NAN],
    "seed": [2**64, 2**63, -1, LONG],
    "omp_num_threads": [10**10, 0],
    "data.workers_per_gpu": [1000, LONG],
    "data.samples_per_gpu": [LONG],
    "watchdog.timeout": [NAN, INF],
    "runner.max_epochs": [LONG],
    "custom_hooks.0.min_delta": [NAN, LONG],
}
CASES = [(key, value) for key, values in WRONG.items() for value in values]


def changed(key: str, value) -> dict:
    cfg = {**copy.deepcopy(CONFIG), "custom_hooks": [{"type": "EarlyStoppingHook"}]}
    *above, last = key.split(".")
    node = cfg
    for part in above:
        node = node[int(part)] if part.isdigit() else node.setdefault(part, {})
    node[last] = value
    return cfg


@pytest.mark.parametrize(
    ("key", "value"), CASES, ids=[f"{k}-{n}" for n, (k, _) in enumerate(CASES)]
)
def test_a_value_that_cannot_be_used_is_refused_where_it_stands(key, value, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(changed(key, value), sort_keys=False))
    cfg = Config.fromfile(path)
    with pytest.raises(ConfigError) as caught:
        check_config(cfg)
    text = str(caught.value)
    line = int(text.split(":")[1])
    assert text.startswith(f"{path}:{line}: {key}")
    found = text.split(": ")[1].split(".")
    name = [part for part in found if not part.isdigit()][-1]
    assert name in "".join(path.read_text().splitlines()[line - 3 : line])
    assert len(text) < 250 + len(str(path))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optimizer_config.grad_clip.max_norm", INF),
        ("optimizer_config.grad_clip.norm_type", INF),
        ("model.bias", -INF),
        ("data.train.fill", NAN),
        ("custom_hooks.0.threshold", INF),
        ("data.workers_per_gpu", 256),
        ("seed", 2**63 - 1),
    ],
)
def test_infinity_passes_where_it_has_a_meaning(key, value):
    check_config(changed(key, value))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["optimizer.lr=1" + "0" * 400], "optimizer.lr"),
        (["seed=18446744073709551616"], "seed"),
        (["optimizer_config.grad_clip.max_norm=-1"], "max_norm"),
    ],
)
def test_the_command_ends_with_status_2_and_one_line(config, train, words, named):
    status, _, err = train(config(), "--cfg-options", *words)
    assert status == 2
    assert err.count("\n") == 1
    assert named in err
    assert "command line" in err


def test_the_flag_for_the_seed_has_the_same_bound(config, train):
    status, _, err = train(config(), "--seed", 2**64)
    assert status == 2
    assert "2**63" in err
