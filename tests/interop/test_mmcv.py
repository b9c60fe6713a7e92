"""Code written for MMCV 1.x, run on devrun: imports, programs, and what is refused."""

import importlib.util
import os
import sys

import pytest

from devrun.cli.main import main
from devrun.interop.mmcv_finder import OURS
from tests.docs.blocks import codes, items
from tests.support import zygote

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mmcv") is not None,
    reason="without an mmcv; `make test` runs it",
)
SHIM = "devrun.interop.mmcv"


def python(*words, cwd=None, path=(), without=True):
    """A program; unless told otherwise in a process that cannot see a real MMCV."""
    env = dict(os.environ)
    seen = [*map(str, path)]
    if not without:
        seen.append(env.get("PYTHONPATH", ""))
    env["PYTHONPATH"] = os.pathsep.join(filter(None, seen))
    return zygote.run([*map(str, words)], env=env, cwd=cwd, timeout=300)


def script(folder, text, name="program.py"):
    file = folder / name
    file.write_text(text)
    return file


@pytest.fixture
def imitation(tmp_path):
    """A package with the layout of MMCV 1.x, as far as imports go."""
    files = {
        "__init__.py": "from .utils import *\n__version__ = '1.7.2'\n",
        "cnn.py": "from .runner import Hook, ModuleList\nfrom .utils import Registry\n",
        "utils/__init__.py": (
            "from .config import Config\nfrom .registry import Registry\n"
            "from .logging import get_logger, logger_initialized\n"
        ),
        "utils/config.py": "raise RuntimeError('the real config')\n",
        "utils/registry.py": "raise RuntimeError('the real registry')\n",
        "utils/logging.py": "logger_initialized = {}\ndef get_logger(): return 1\n",
        "runner/__init__.py": (
            "from .base_module import ModuleList\nfrom .hooks.hook import HOOKS, Hook\n"
            "from .epoch_based_runner import EpochBasedRunner\n"
        ),
        "runner/base_module.py": "class ModuleList(list): pass\n",
        "runner/epoch_based_runner.py": "raise RuntimeError('the real runner')\n",
        "runner/hooks/__init__.py": "from .vendor import VendorLoggerHook\n",
        "runner/hooks/hook.py": "raise RuntimeError('the real hooks')\n",
        "runner/hooks/vendor.py": (
            "from .logger.base import LoggerHook\nfrom .hook import HOOKS\n"
            "@HOOKS.register_module()\n"
            "class VendorLoggerHook(LoggerHook):\n    def log(self, runner): pass\n"
        ),
        "runner/hooks/logger/__init__.py": "",
    }
    for name, text in files.items():
        file = tmp_path / "site" / "mmcv" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "site"


def test_every_name_of_the_table_is_that_of_devrun(tmp_path):
    program = script(
        tmp_path,
        "import importlib, devrun.interop.mmcv as shim\n"
        "from devrun.interop.mmcv_finder import OURS\n"
        "import mmcv, mmcv.runner, mmcv.runner.hooks\n"
        "for module, names in OURS.items():\n"
        "    theirs = importlib.import_module(module)\n"
        "    for name, home in names.items():\n"
        "        ours = getattr(importlib.import_module(home), name)\n"
        "        assert getattr(theirs, name) is ours\n"
        "        package = mmcv if module.startswith('mmcv.utils') else mmcv.runner\n"
        "        assert getattr(package, name) is ours\n"
        "assert not hasattr(mmcv, 'Hook') and mmcv.runner.hooks.Hook\n"
        "finders = [f for f in __import__('sys').meta_path if f is shim.install()]\n"
        "assert len(finders) == 1\n",
    )
    done = python(program)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_and_the_table_give_the_same_names():
    table = {
        name: (module, home)
        for module, names in OURS.items()
        for name, home in names.items()
    }
    for row in items("docs/from-mmcv.md", "## Imports"):
        package, ours, *names = codes(row)
        for name in names:
            module, home = table[name]
            assert f"{module}.".startswith(f"{package}."), name
            assert home.startswith(ours), name


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("from mmcv.runner import BaseModule", "mmcv.runner.BaseModule is not in"),
        ("from mmcv.parallel import collate", "mmcv.parallel is not in devrun"),
        ("import mmcv.cnn", "mmcv.cnn is not in devrun"),
        ("from mmcv.runner.hooks.ema import Other", "mmcv.runner.hooks.ema.Other is"),
    ],
)
def test_what_is_missing_says_what_to_install(tmp_path, line, said):
    program = script(tmp_path, f"import devrun.interop.mmcv\n{line}\n")
    done = python(program)
    last = done.stderr.strip().split("\n")[-1]
    assert last.startswith("ModuleNotFoundError: ") and said in last
    assert "pip install mmcv==1.7.2" in last


def test_an_installed_mmcv_stays_beside(tmp_path, imitation):
    program = script(
        tmp_path,
        "import devrun.interop.mmcv, devrun.hooks, devrun.config, devrun.runners\n"
        "import mmcv, mmcv.cnn, mmcv.runner\n"
        "from mmcv.utils import logger_initialized, get_logger\n"
        "from mmcv.utils.logging import logger_initialized as again\n"
        "assert mmcv.cnn.Hook is devrun.hooks.Hook\n"
        "assert mmcv.Config is devrun.config.Config\n"
        "assert mmcv.runner.EpochBasedRunner is devrun.runners.EpochBasedRunner\n"
        "assert mmcv.cnn.ModuleList.__module__ == 'mmcv.runner.base_module'\n"
        "assert devrun.hooks.HOOKS.get('VendorLoggerHook')\n"
        "assert logger_initialized is again == {} and get_logger() != 1\n"
        "from mmcv.runner.hooks.ema import Other\n",
    )
    done = python(program, path=[imitation])
    last = done.stderr.strip().split("\n")[-1]
    assert "Other is not in devrun's mmcv.runner.hooks.ema" in last, done.stderr


def test_it_is_refused_once_the_real_one_is_imported(tmp_path, imitation):
    for module in ("config", "registry"):  # this once it is the real one's turn
        (imitation / "mmcv" / "utils" / f"{module}.py").write_text(
            "Config = Registry = 1\n"
        )
    program = script(
        tmp_path,
        "import mmcv\n"
        "try:\n    import devrun.interop.mmcv\n"
        "except ValueError as error:\n    print(error)\n"
        "from mmcv.utils import Config\nprint(Config)\n",
    )
    done = python(program, path=[imitation])
    refusal, config = done.stdout.strip().split("\n")
    assert refusal.startswith("the real mmcv is imported already, from ")
    assert refusal.endswith("or start with python -m devrun.interop.mmcv")
    assert config == "1"


def test_mmcv_2_is_refused(tmp_path):
    package = tmp_path / "mmcv"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '2.1.0'\n")
    done = python("-m", "devrun.interop.mmcv", script(tmp_path, ""), path=[tmp_path])
    assert done.returncode == 2
    assert "is not MMCV 1.x" in done.stderr.strip().split("\n")[-1]


CONFIG = """
model: {type: ResNet, stem: cifar, stage_blocks: [1], base_channels: 4,
        in_channels: 1, num_classes: 10}
loss: {type: CrossEntropyLoss}
data:
  samples_per_gpu: 256
  train: {type: DigitsDataset, split: train}
  val: {type: DigitsDataset, split: val}
optimizer: {type: SGD, lr: 0.1}
optimizer_config: {grad_clip: null}
log_config: {interval: 3, hooks: [{type: TextLoggerHook}]}
runner: {type: EpochBasedRunner, max_epochs: 2}
seed: 1
"""
FREEZE = """
from mmcv.runner import HOOKS, Hook, get_dist_info, master_only
from mmcv.utils import print_log

@HOOKS.register_module()
class FreezeStemHook(Hook):
    def __init__(self, until):
        self.until = until

    def before_train_epoch(self, runner):
        self.stem = next(iter(runner.model.children()))
        for parameter in self.stem.parameters():
            parameter.requires_grad = runner.epoch >= self.until

    @master_only
    def after_train_epoch(self, runner):
        frozen = not next(self.stem.parameters()).requires_grad
        rank, world_size = get_dist_info()
        print_log(f"frozen in epoch {runner.epoch}: {frozen}", logger="root")
        print(f"frozen {runner.epoch} {frozen} {rank} {world_size}")
"""
SCHEDULE = """
from mmcv.runner.hooks import HOOKS, LrUpdaterHook
from mmcv.runner.hooks.lr_updater import annealing_cos

@HOOKS.register_module()
class HalfCosineLrUpdaterHook(LrUpdaterHook):
    def __init__(self, floor, **kwargs):
        self.floor = floor
        super().__init__(**kwargs)

    def get_lr(self, runner, base_lr):
        progress = runner.iter if not self.by_epoch else runner.epoch
        limit = runner.max_iters if not self.by_epoch else runner.max_epochs
        return annealing_cos(base_lr, self.floor, progress / limit)
"""
NORMS = """
import mmcv.runner.hooks as hooks
from mmcv.runner.hooks.logger import LoggerHook

@hooks.HOOKS.register_module()
class EarlyStoppingHook(hooks.Hook):  # a name that devrun has and MMCV has not
    priority = "LOW"

    def after_train_iter(self, runner):
        if self.every_n_iters(runner, 3):
            norm = sum(float(p.detach().norm()) for p in runner.model.parameters())
            runner.log_buffer.update({"norm": norm})

@hooks.HOOKS.register_module()
class PrintLoggerHook(LoggerHook):
    def log(self, runner):
        tags = self.get_loggable_tags(runner)
        print("tags", self.get_mode(runner), self.get_iter(runner), *sorted(tags))
"""
SETTINGS = """
lr_config: {policy: HalfCosine, floor: 0.01, by_epoch: false}
custom_hooks:
- {type: FreezeStemHook, until: 1}
- {type: EarlyStoppingHook}
- {type: PrintLoggerHook, interval: 3}
"""


@pytest.fixture
def hook_files(tmp_path):
    """Three files of hooks as they are for MMCV, and a config that names them."""
    script(tmp_path, FREEZE, "freeze_hook.py")
    script(tmp_path, SCHEDULE, "schedule_hook.py")
    script(tmp_path, NORMS, "norm_hooks.py")
    script(tmp_path, CONFIG + SETTINGS, "config.yaml")
    imports = ("freeze_hook", "schedule_hook", "norm_hooks")
    return ["train", "config.yaml", "--device", "cpu", "--no-progress"] + [
        word for name in imports for word in ("--import", name)
    ]


def test_hook_files_of_mmcv_train_with_the_flag(tmp_path, hook_files):
    done = python("-m", "devrun", *hook_files, "--mmcv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "devrun: note: imports of mmcv.runner and mmcv.utils give devrun's" in (
        done.stderr
    )
    said = done.stdout.split("\n")
    assert [line for line in said if line.startswith("frozen")] == [
        "frozen 0 True 0 1",
        "frozen 1 False 0 1",
    ]
    tags = [line.split() for line in said if line.startswith("tags")]
    assert tags[0][1:3] == ["train", "3"]
    assert {"learning_rate", "momentum", "train/norm", "train/loss"} <= set(tags[0])


def test_without_the_flag_they_do_not_import(tmp_path, hook_files):
    done = python("-m", "devrun", *hook_files, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.strip().split("\n")
    assert "--import freeze_hook failed" in line and "; --mmcv gives" in line


@pytest.mark.parametrize(
    "asked",
    [
        "custom_imports: {imports: [devrun.interop.mmcv]}",
        "custom_hooks: [{type: devrun.interop.mmcv.install}]",
        "custom_hooks: [{type: devrun.interop.mmcv.install.more}]",
        "custom_hooks: [{type: devrun.interop.mmcv_finder.Finder}]",
    ],
)
def test_a_config_cannot_ask_for_it(tmp_path, capsys, monkeypatch, asked):
    monkeypatch.chdir(tmp_path)
    script(tmp_path, CONFIG + asked, "config.yaml")
    before = list(sys.meta_path)
    assert main(["train", "config.yaml", "--device", "cpu"]) == 2
    assert "which a config cannot ask for: give the flag --mmcv" in (
        capsys.readouterr().err
    )
    assert sys.meta_path == before and SHIM not in sys.modules


PROGRAM = """
import argparse, logging, os.path as osp
import torch
from torch.utils.data import DataLoader, TensorDataset
from {runner} import (DefaultOptimizerConstructor, EpochBasedRunner, build_optimizer,
                      build_runner, set_random_seed)
from {config} import Config, DictAction
from {registry} import Registry, build_from_cfg

parser = argparse.ArgumentParser()
parser.add_argument("config")
parser.add_argument("--work-dir")
parser.add_argument("--cfg-options", nargs="+", action=DictAction)
args = parser.parse_args()
cfg = Config.fromfile(args.config)
cfg.merge_from_dict(args.cfg_options or dict())
MODELS = Registry("model")

@MODELS.register_module()
class Line(torch.nn.Linear):
    def train_step(self, data, optimizer):
        loss = torch.nn.functional.cross_entropy(self(data[0]), data[1])
        return dict(loss=loss, log_vars=dict(loss=loss.item()), num_samples=4)

set_random_seed(3)
model = torch.nn.DataParallel(build_from_cfg(cfg.model, MODELS))
optimizer = build_optimizer(model, cfg.optimizer)
runner = build_runner(cfg.runner, default_args=dict(
    model=model, optimizer=optimizer, work_dir=args.work_dir,
    logger=logging.getLogger("mine"), meta=dict()))
runner.register_training_hooks(cfg.lr_config, cfg.optimizer_config,
                               cfg.checkpoint_config, cfg.log_config)
inputs = torch.randn(24, 5)
data = TensorDataset(inputs, torch.arange(24) % 3)
runner.run([DataLoader(data, 4, shuffle=True)], [("train", 1)])
print(type(runner).__module__, type(runner.model).__name__, runner.adapter.name,
      runner.iter, [round(float(v), 6) for v in runner.model.weight.sum(1)])
"""
SECTIONS = """
depth = 5
model = dict(type="Line", in_features=depth, out_features=3)
optimizer = dict(type="SGD", lr=0.1, paramwise_cfg=dict(bias_lr_mult=2.0))
optimizer_config = dict(grad_clip=dict(max_norm=1.0))
lr_config = dict(policy="step", step=[1])
checkpoint_config = dict(interval=1)
log_config = dict(interval=2, hooks=[dict(type="TextLoggerHook")])
runner = dict(type="EpochBasedRunner", max_epochs=2)
"""
THEIRS = {"runner": "mmcv.runner", "config": "mmcv", "registry": "mmcv.utils"}


def test_a_program_written_for_mmcv_does_what_devrun_does(tmp_path):
    script(tmp_path, SECTIONS, "config.py")
    script(tmp_path, PROGRAM.format(**THEIRS), "theirs.py")
    names = {"runner": "here", "config": "devrun", "registry": "devrun"}
    both = "from devrun.optim import *\nfrom devrun.runners import *\n"
    script(tmp_path, both, "here.py")
    script(tmp_path, PROGRAM.format(**names), "ours.py")
    words = ("config.py", "--cfg-options", "runner.max_epochs=3", "--work-dir")
    theirs = python("-m", SHIM, "theirs.py", *words, "a", cwd=tmp_path)
    ours = python("ours.py", *words, "b", cwd=tmp_path)
    assert theirs.returncode == ours.returncode == 0, theirs.stderr + ours.stderr
    assert theirs.stdout == ours.stdout
    assert theirs.stdout.startswith("devrun.runners.kinds Line cpu 18 [")
    assert (tmp_path / "a" / "checkpoints" / "step-00000018").is_dir()
    assert "devrun: note: " in theirs.stderr and "devrun: note: " not in ours.stderr


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "nothing to run; for example: python -m devrun.interop.mmcv"),
        (["--device", "cpuu", "theirs.py", "config.py"], 2, "did you mean 'cpu'?"),
        (["theirs.py", "nowhere.py"], 2, "devrun: error: nowhere.py"),
        (["theirs.py", "code.py"], 2, "use --trust-config to run this file"),
        (["--trust-config", "theirs.py", "code.py", "--work-dir", "w"], 0, ""),
        (["-m", "theirs", "config.py", "--x"], 2, "unrecognized arguments: --x"),
    ],
)
def test_how_a_program_ends(tmp_path, words, status, said):
    script(tmp_path, SECTIONS, "config.py")
    script(tmp_path, "import os\n" + SECTIONS + "depth = len(os.sep) * 5\n", "code.py")
    script(tmp_path, PROGRAM.format(**THEIRS), "theirs.py")
    done = python("-m", SHIM, *words, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert said in done.stderr.strip().split("\n")[-1]
    assert "Traceback" not in done.stderr


EVALUATES = """
import torch
from torch.utils.data import DataLoader, Dataset
from mmcv.runner import DistEvalHook, EMAHook, EpochBasedRunner, EvalHook

class Points(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return dict(x=torch.ones(2) * index)

    def evaluate(self, results, logger=None, scale=1):
        return dict(total=scale * float(sum(results)), count=len(results))

class Model(torch.nn.Linear):
    def forward(self, x, return_loss=True):
        out = super().forward(x).sum(1)
        return dict(loss=out.mean()) if return_loss else list(out.detach().numpy())

    def train_step(self, data, optimizer):
        loss = self(**data)["loss"]
        return dict(loss=loss, log_vars=dict(loss=loss.item()), num_samples=2)

class Own({base}):
    greater_keys = ["total"]

    def _do_evaluate(self, runner):
        results = self.test_fn(runner.model, self.dataloader, {options})
        self.latest_results = results
        self.seen = [float(p) for p in runner.model.weight.sum(1)]
        runner.log_buffer.output["eval_iter_num"] = len(self.dataloader)
        if runner.rank == 0:
            score = self.evaluate(runner, results)
            if self.save_best and score:
                self._save_ckpt(runner, score)

torch.manual_seed(0)
model = Model(2, 1)
runner = EpochBasedRunner(
    model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), max_epochs=2,
    work_dir="work", device="cpu")
runner.register_hook(EMAHook(momentum=0.5, warm_up=1))
hook = Own(DataLoader(Points(), 2), save_best="auto", rule="greater", scale=10)
runner.register_hook(hook)
runner.run([DataLoader(Points(), 2)], [("train", 1)])
now = [float(p) for p in model.weight.sum(1)]
with runner.evaluating():
    averaged = [float(p) for p in model.weight.sum(1)]
assert hook.seen == averaged != now  # the average was in the model, and is out again
assert hook.rule == "greater" and hook.key_indicator == "total"
print(len(hook.latest_results), hook.test_fn, runner.meta["hook_msgs"]["best_ckpt"])
assert hook.best.entry and len(hook.latest_results) == 6
from safetensors.torch import load_file
import os
best = runner.meta["hook_msgs"]["best_ckpt"]
saved = load_file(os.path.join(best, "model.safetensors"))
print("trained", sorted(saved))
"""


OWN = {"EvalHook": "", "DistEvalHook": "tmpdir=None, gpu_collect=self.gpu_collect"}


@pytest.mark.parametrize("base", OWN)
def test_an_evaluation_hook_of_its_own(tmp_path, base):
    text = EVALUATES.replace("{base}", base).replace("{options}", OWN[base])
    program = script(tmp_path, text)
    done = python("-m", SHIM, program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.strip().split("\n")
    assert first.startswith("6 None ") and "best_total_epoch_" in first
    assert second == "trained ['bias', 'weight']"
