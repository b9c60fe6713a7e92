"""What no module may do, whatever it is for. The numbers are those of the list of
nevers that the project keeps; 2 to 6 are in test_layers.py, 11 is ruff's."""

import ast
import re

import pytest

from devrun.devices.update import UpdateRule
from tests.support.strict import zip_strict

DEVICE_NAMES = {
    "cpu",
    "cuda",
    "gaudi",
    "gpu",
    "hpu",
    "ipu",
    "mlu",
    "mps",
    "npu",
    "xla",
    "xpu",
}
TORCH_HARDWARE = ("accelerator", "cuda", "hpu", "mlu", "mps", "npu", "xla", "xpu")
EXECUTES = {"devrun/config/trusted.py", "devrun/rehearsal/check/left_out.py"}
"""The file behind `--trust-config`, and the one that runs the user's own script."""


def dotted(node):
    """`a.b.c` for a chain of attributes on a name, else an empty string."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join(reversed([*parts, node.id]))


KNOWS_TORCH = "torch_features"
"""The one file that asks what this torch has, its classes for a device included."""


def outside_devices(modules):
    rooms = ("devices", "emulators", KNOWS_TORCH)
    return [m for m in modules if m.room not in rooms]


def strings_in(node):
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return {value for item in node.elts for value in strings_in(item)}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value.split(":")[0].lower()}
    return set()


def calls(module, *names):
    """Calls of a plain name or of a method or dotted function in `names`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            last = node.func.attr if isinstance(node.func, ast.Attribute) else name
            if name in names or f".{last}" in names:
                yield node, name or last


def test_1_no_device_name_is_compared_outside_devices(modules):
    wrong = []
    for m in outside_devices(modules):
        for node in ast.walk(m.tree):
            found = set()
            if isinstance(node, ast.Compare):
                for side in (node.left, *node.comparators):
                    found |= strings_in(side)
            elif isinstance(node, ast.Call) and dotted(node.func).endswith(
                ".startswith"
            ):
                found = {value for arg in node.args for value in strings_in(arg)}
            if found & DEVICE_NAMES:
                wrong.append(f"{m.at(node)} compares {sorted(found & DEVICE_NAMES)}")
    assert not wrong, "\n".join(wrong)


STANDS_FOR_CUDA = "devrun/probes/hard_wired.py"
"""Replaces torch.cuda where a rehearsal runs without it, and asks nothing of it."""


def test_1_no_hardware_api_is_used_outside_devices(modules):
    roots = tuple(f"torch.{name}" for name in TORCH_HARDWARE)
    wrong = []
    for m in outside_devices(modules):
        if str(m.path) == STANDS_FOR_CUDA:
            continue
        for node in ast.walk(m.tree):
            if isinstance(node, ast.Attribute) and dotted(node) in roots:
                wrong.append(f"{m.at(node)} uses {dotted(node)}")
        for i in m.imports:
            if i.target.startswith(roots):
                wrong.append(f"{m.path}:{i.line} imports {i.target}")
    assert not wrong, "\n".join(wrong)


def test_8_nothing_imported_is_assigned_to(modules):
    wrong = []
    for m in modules:
        imported = _imported_names(m)
        for node in ast.walk(m.tree):
            for target in _targets(node):
                name = dotted(target)
                if name.startswith("torch.backends.") and m.room == "devices":
                    continue
                if isinstance(target, ast.Attribute) and name.split(".")[0] in imported:
                    wrong.append(f"{m.at(node)} assigns {name}")
                if isinstance(target, ast.Subscript) and dotted(target.value) in (
                    "sys.modules",
                    "modules",
                ):
                    wrong.append(f"{m.at(node)} writes sys.modules")
        for node, name in calls(m, "setattr", "delattr"):
            if node.args and dotted(node.args[0]).split(".")[0] in imported:
                wrong.append(f"{m.at(node)} {name} on {dotted(node.args[0])}")
        for node, name in calls(m, ".pop", ".update", ".setdefault", ".clear"):
            if name.startswith("sys.modules."):
                wrong.append(f"{m.at(node)} {name}")
    assert not wrong, "\n".join(wrong)


def test_9_nobody_asks_which_adapter_or_wrapper_it_has(modules):
    wrong = []
    for m in outside_devices(modules):
        for node, name in calls(m, "isinstance", "issubclass"):
            kinds = ast.dump(node.args[1])
            if "Adapter" in kinds or "DataParallel" in kinds:
                wrong.append(f"{m.at(node)} {name} on an adapter or a wrapper")
        for node, name in calls(m, "getattr", "hasattr"):
            if len(node.args) > 1 and "module" in strings_in(node.args[1]):
                wrong.append(f"{m.at(node)} {name}(..., 'module')")
        for node in ast.walk(m.tree):
            # `.module` of something called a model; StepModule's own is its contract.
            if isinstance(node, ast.Attribute) and node.attr == "module":
                owner = dotted(node.value).rpartition(".")[2]
                if owner.endswith("model"):
                    wrong.append(f"{m.at(node)} unwraps {dotted(node)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        (("print",), lambda m: m.path == "tools/outside.py"),
        # gloo: its threads can only be watched, nothing tells when they are idle
        (("time.sleep", "sleep"), lambda m: m.room == "peers"),
        (("exec", "eval", "compile"), lambda m: m.path in EXECUTES),
        (
            (
                "logging.basicConfig",
                "logging.StreamHandler",
                "logging.FileHandler",
                ".addHandler",
            ),
            lambda m: m.room == "log",
        ),
    ],
    ids=["print", "sleep", "exec", "log handlers"],
)
def test_12_not_called_outside_its_place(modules, names, allowed):
    wrong = [
        f"{m.at(node)} calls {name}"
        for m in modules
        if not allowed(m) and m.room != "emulators"
        for node, name in calls(m, *names)
    ]
    assert not wrong, "\n".join(wrong)


def test_13_hooks_leave_the_runners_own_state_alone(devrun_modules):
    wrong = [
        f"{m.at(node)} touches runner.{node.attr}"
        for m in devrun_modules
        if m.room == "hooks"
        for node in ast.walk(m.tree)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_")
        if isinstance(node.value, ast.Name) and node.value.id == "runner"
    ]
    assert not wrong, "\n".join(wrong)


WRITERS = {
    "state": {"devrun/runners/loops.py", "devrun/runners/runner.py"},
    "session": set(),
    "checkpointer": set(),
}
"""Part of a run -> the files, beside its own class, that assign to it. The runner has
MMCV's names for users who write a loop of their own."""


def test_22_each_part_of_a_run_is_written_in_one_place(devrun_modules):
    wrong = [
        f"{m.at(node)} writes {ast.unparse(target)}"
        for m in devrun_modules
        if m.room not in ("cli", "emulators")  # a command's own session is no run's
        for node in ast.walk(m.tree)
        for target in _written(node)
        if m.path not in WRITERS.get(_last(target.value), {m.path})
    ]
    assert not wrong, "\n".join(wrong)


def _written(node):
    """The attributes that a statement, a loop, or a `setattr` assigns to."""
    targets = [*_targets(node)]
    if isinstance(node, (ast.For, ast.AsyncFor)):
        targets += _flat(node.target)
    if isinstance(node, ast.Call) and dotted(node.func) == "setattr":
        targets.append(ast.Attribute(node.args[0], "?", ast.Store()))
    return [target for target in targets if isinstance(target, ast.Attribute)]


def _last(node):
    """The last name of `a.b.c`."""
    return dotted(node).rpartition(".")[2]


def _imported_names(module):
    """Names bound by an import anywhere in the file."""
    names = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names |= {a.asname or a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {a.asname or a.name for a in node.names}
    return names


def _targets(node):
    if isinstance(node, (ast.Assign, ast.Delete)):
        return [t for target in node.targets for t in _flat(target)]
    if isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        return [node.target]
    return []


def _flat(target):
    if isinstance(target, (ast.Tuple, ast.List)):
        return [t for item in target.elts for t in _flat(item)]
    return [target]


BAD = """
import torch, sys, logging, time
from torch import nn
if device == "cuda:0": pass
torch.cuda.empty_cache()
nn.Linear.forward = None
sys.modules["x"] = None
isinstance(a, CpuAdapter)
self.model.module
for runner.state.iter in (): pass
print(time.sleep(1))
logging.getLogger().addHandler(h)
"""


@pytest.mark.parametrize(
    "test",
    [
        test_1_no_device_name_is_compared_outside_devices,
        test_1_no_hardware_api_is_used_outside_devices,
        test_8_nothing_imported_is_assigned_to,
        test_9_nobody_asks_which_adapter_or_wrapper_it_has,
        test_22_each_part_of_a_run_is_written_in_one_place,
    ],
)
def test_the_rules_have_teeth(test, tmp_path, modules):
    kind = type(modules[0])
    bad = kind.__new__(kind)
    bad.path, bad.name, bad.text = "devrun/x.py", "devrun.x", BAD
    bad.tree = ast.parse(BAD)
    with pytest.raises(AssertionError, match=r"devrun/x\.py"):
        test([bad])


VENDOR_WORDS = re.compile(
    r"(?i:habana|gaudi|poptorch|popart|graphcore)|\bPT_[A-Z]|\bGC_[A-Z]"
)
NAMES_EMULATORS = {
    "devrun/devices/emulation.py",
    "devrun/device_facts.py",
}


DEVICES_OF_VENDORS = re.compile(r"\b(hpu|ipu|gaudi|ipus)\b|\bipu_", re.IGNORECASE)
KNOW_NO_VENDOR = re.compile(
    r"devrun/(config|runners|hooks)/|devrun/errors\.py"
    r"|devrun/devices/(__init__|base|resolve|eager|update|cpu|cuda|generic)\.py"
)


@pytest.mark.parametrize(
    ("words", "may"),
    [
        (
            VENDOR_WORDS,
            lambda path: (
                re.match(r"devrun/devices/(hpu|ipu)\b", path) or path in NAMES_EMULATORS
            ),
        ),
        # what a device adds to configs, resumes and `auto` comes from its facts
        (DEVICES_OF_VENDORS, lambda path: not KNOW_NO_VENDOR.match(path)),
    ],
    ids=["20 outside its folder", "23 above the devices"],
)
def test_20_23_no_vendor_is_named(devrun_modules, words, may):
    wrong = []
    for m in outside_emulators(devrun_modules):
        if may(m.path):
            continue
        told = {id(node) for node in docstrings(m.tree)}
        wrong += [
            f"{m.at(node)} {node.value[:60]!r}"
            for node in ast.walk(m.tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if id(node) not in told and words.search(node.value)
        ]
    assert not wrong, "\n".join(wrong)


def test_21_shipped_code_has_no_hook_for_tests(modules):
    hook = re.compile("FAILPOINT|TEST_MODE|PYTEST|in_tests")
    wrong = [
        m.path
        for m in modules
        if not m.path.startswith("devrun/testing/") and hook.search(m.text)
    ]
    assert not wrong, "\n".join(wrong)


def test_22_an_update_is_made_once(devrun_modules):
    """The adapter makes the value; nobody edits it, and a step only runs it."""
    assert UpdateRule.__dataclass_params__.frozen
    own = ("devrun/devices/eager.py", "devrun/devices/update.py")
    found = []
    for module in devrun_modules:
        for node in ast.walk(module.tree):
            for target in _targets(node):
                name = dotted(target) or ""
                if re.search(r"(^|\.)update\.\w+$", name) or (
                    name.endswith(".update") and module.path not in own
                ):
                    found.append(f"{module.at(node)}: {name}")
    assert not found, "\n".join(found)


OF_A_TRIAL = {
    "auto_resume", "checkpoint_config", "limit_val", "load_from", "max_epochs",
    "max_iters", "performance", "resume_from", "work_dir", "workers_per_gpu",
    "workflow",
}  # fmt: skip
TRY_ONE = ("devrun/cli/", "devrun/rehearsal/", "devrun/runners/training.py")
"""Who tries trainings, or builds them."""


def test_24_one_file_shortens_a_training(devrun_modules):
    """runners/trial.py alone knows what of a config has to go for that."""
    wrong = []
    for m in devrun_modules:
        if not m.path.startswith(TRY_ONE):
            continue
        for node in ast.walk(m.tree):
            found = {key.rpartition(".")[2] for key in taken_away(node)} & OF_A_TRIAL
            if found:
                wrong.append(f"{m.at(node)} takes {sorted(found)} from a config")
    assert not wrong, "\n".join(wrong)


def taken_away(node):
    """Keys that a statement or a dict sets to None, 0 or a number."""
    if isinstance(node, ast.Dict):
        pairs = zip_strict(node.keys, node.values)
        return {k.value for k, v in pairs if is_text(k) and isinstance(v, ast.Constant)}
    if isinstance(node, ast.Assign):
        keys = [t.slice for t in node.targets if isinstance(t, ast.Subscript)]
        return {key.value for key in keys if is_text(key)}
    if isinstance(node, ast.For) and any(map(sets_an_item, ast.walk(node))):
        names = ast.walk(node.iter)
        return {name.value for name in names if is_text(name)}
    return set()


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def sets_an_item(node):
    targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else []
    return any(isinstance(target, ast.Subscript) for target in targets)


def outside_emulators(modules):
    return [m for m in modules if m.room != "emulators"]


def docstrings(tree):
    """The constants that stand as statements: they are read, never run."""
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
