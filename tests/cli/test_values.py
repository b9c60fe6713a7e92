"""Values that no run can use: one line with file, line and key, before it starts."""

import math

import pytest
import yaml

from devrun.config import Config, check_config
from devrun.errors import ConfigError
from tests.cli.conftest import CONFIG
from tests.support.configs import changed

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
SMALL = {**CONFIG, "custom_hooks": [{"type": "EarlyStoppingHook"}]}
CASES = [(key, value) for key, values in WRONG.items() for value in values]


@pytest.mark.parametrize(
    ("key", "value"), CASES, ids=[f"{k}-{n}" for n, (k, _) in enumerate(CASES)]
)
def test_a_value_that_cannot_be_used_is_refused_where_it_stands(key, value, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(changed(SMALL, {key: value}), sort_keys=False))
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
    check_config(changed(SMALL, {key: value}))


def test_the_flag_for_the_seed_has_the_same_bound(config, train):
    status, _, err = train(config(), "--seed", 2**64)
    assert status == 2
    assert "2**63" in err
