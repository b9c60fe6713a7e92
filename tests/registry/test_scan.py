"""A walk over every callable that a dotted path can reach in the packages of the field:
what a config may name is of the kind, from a place that was looked at, or on a list."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from devrun.errors import ConfigError
from devrun.trust import import_path
from tests.support import zygote

ROOT = Path(__file__).parents[2]
SCAN = ROOT / "tests" / "registry" / "scanning.py"

MODULE = "torch.nn.modules.module.Module"
BASES = {
    "dataset": "torch.utils.data.dataset.Dataset",
    "hook": "devrun.hooks.base.Hook",
    "learning-rate scheduler": "torch.optim.lr_scheduler.LRScheduler",
    "loss": MODULE,
    "model": MODULE,
    "optimizer": "torch.optim.optimizer.Optimizer",
    "processor": "transformers.image_processing_base.ImageProcessingMixin",
    "optimizer constructor": "devrun.optim.DefaultOptimizerConstructor",
    "runner": "devrun.runners.runner.BaseRunner",
    "sampler": "torch.utils.data.sampler.Sampler",
}
CALLABLE = (
    "timm.data.",
    "torchmetrics.",
    "torchvision.transforms.",
    "transformers.data.data_collator.",
)
PLACES = (
    "peft.",
    "timm.data.",
    "timm.layers.",
    "timm.loss.",
    "timm.models.",
    "timm.optim.",
    "timm.scheduler.",
    "torch.nn.modules.",
    "torch.optim.",
    "torch.utils.data.dataset.",
    "torch.utils.data.distributed.",
    "torch.utils.data.sampler.",
    "torchmetrics.",
    "torchvision.datasets.",
    "torchvision.models.",
    "torchvision.ops.",
    "torchvision.transforms.",
    "transformers.",
)
FACTORIES = {
    "peft.mapping_func.get_peft_model",
    "timm.data.dataset_factory.create_dataset",
    "timm.data.loader.fast_collate",
    "timm.data.transforms_factory.create_transform",
    "timm.models._factory.create_model",
    "torch.utils.data._utils.collate.default_collate",
    "torch.utils.data._utils.collate.default_convert",
    "torchvision.models._api.get_model",
    "transformers.data.data_collator.default_data_collator",
}
METHODS = (".from_pretrained", ".from_config")
NEVER = {
    "torch.fx.graph_module.GraphModule",
    "torch.jit._script.RecursiveScriptModule",
    "torch.distributed.nn.api.remote_module.RemoteModule",
}


def scanned(package, *flags):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = zygote.run([SCAN, *flags, package], env, ROOT, 1800)
    last = done.stderr.rstrip().rpartition("\n")[2]
    if done.returncode and last.startswith("ModuleNotFoundError"):
        pytest.skip(f"{package} does not import here: {last}")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["callables"] > 100
    return found


def check(found):
    """What is accepted, by a rule written down apart from the tables it is for."""
    for row in found["accepted"]:
        path = row["path"]
        assert row["home"] not in NEVER, path
        if row["home"].startswith("transformers.") and path.endswith(METHODS):
            continue
        if not row["class"]:
            assert row["listed"] or row["home"] in FACTORIES, path
            continue
        assert row["home"].startswith(PLACES), path
        for kind in row["kinds"]:
            base = BASES.get(kind, MODULE)
            callable_one = kind not in BASES and row["home"].startswith(CALLABLE)
            assert base in row["bases"] or callable_one, (path, kind)


@pytest.mark.parametrize("package", ["torch", "numpy"])
def test_nothing_outside_the_rule_is_accepted_of_what_torch_loads(package):
    found = scanned(package)
    check(found)
    assert bool(found["accepted"]) == (package == "torch")


@pytest.mark.slow
@pytest.mark.parametrize(
    "package",
    [
        "numpy",
        "peft",
        "timm",
        "torch",
        "torchmetrics",
        "torchvision",
        "transformers",
    ],
)
def test_nothing_outside_the_rule_is_accepted_of_whole_packages(package):
    found = scanned(package, "--whole")
    check(found)
    assert bool(found["accepted"]) == (package != "numpy")


def test_nothing_of_the_standard_library_is_accepted():
    for name in sorted(sys.stdlib_module_names):
        with pytest.raises(ConfigError, match="is in the standard library"):
            import_path(f"{name}.anything")
    with pytest.raises(ConfigError, match="is in the standard library"):
        import_path("test.support.run_unittest")  # in none of the lists of names
