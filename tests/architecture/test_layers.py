"""Who may import whom: lower layers only, no circles, hardware behind one door."""

import ast
import json
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter

import pytest

from devrun.device_facts import ADAPTERS
from tests.support import zygote

LAYERS = {
    "python38": 0,
    "errors": 0,
    "redact": 0,
    "files": 0,
    "network": 0,
    "place": 0,
    "text": 0,
    "blame": 0,
    "device_facts": 0,
    "trust": 1,
    "construct": 1,
    "torch_features": 1,
    "tensors": 1,
    "registry": 1,
    "scopes": 1,
    "config": 1,
    "step": 1,
    "dist": 1,
    "lock": 1,
    "launched": 1,
    "launchers": 1,
    "peers": 1,
    "ranks": 1,
    "log": 2,
    "data": 2,
    "optim": 2,
    "models": 2,
    "metrics": 2,
    "checkpoint": 2,
    "run": 3,
    "parallel": 3,
    "hooks": 4,
    "probes": 4,
    "devices": 5,
    "interop": 6,
    "runners": 7,
    "export": 8,
    "rehearsal": 8,
    "cli": 9,
    "testing": 9,
    "": 10,  # devrun/__init__.py, a table of names
    "__main__": 10,
}
CORE = ("runners", "models", "hooks", "data", "metrics", "optim", "registry", "scopes")
FRAMEWORKS = (
    "guest", "hugging", "lightning", "mmcls", "mmdet", "mmengine", "mmpretrain",
    "mmseg", "openmmlab", "pytorch_lightning", "transformers",
)  # fmt: skip
"""What no name and no text of the core begins with."""
ROWS = ("devrun.data", "devrun.data.datasets.huggingface")
"""A data set that reads another's tables, as others read images."""
VERSION_ONLY = ("devrun", "devrun.__version__")
"""The front is a table of names that loads nothing, so its version is for all."""
OPEN_ADAPTER_DOORS = (
    "devrun.devices.base",
    "devrun.devices.device_section",
    "devrun.devices.resolve",
    "devrun.devices.seeding",  # torch's streams on whatever is here
)
VENDORS = (
    "poptorch",
    "popart",
    "habana_frameworks",
    "torch_npu",
    "torch_mlu",
    "intel_extension_for_pytorch",
)
WITHOUT_TORCH = (
    "devrun", "devrun.errors", "devrun.config", "devrun.registry", "devrun.dist",
)  # fmt: skip


def room_of(target):
    return [*target.split("."), ""][1]


def is_ours(target):
    return target == "devrun" or target.startswith("devrun.")


def test_every_room_has_a_layer(devrun_modules):
    rooms = {m.room for m in devrun_modules} - {"emulators"}
    assert rooms <= set(LAYERS), f"no layer for {sorted(rooms - set(LAYERS))}"


def test_no_room_imports_a_higher_one(devrun_modules):
    wrong = [
        f"{m.path}:{i.line} imports {i.target}"
        for m in devrun_modules
        if m.room != "emulators"
        for i in m.imports
        if is_ours(i.target) and i.target not in VERSION_ONLY
        if LAYERS[room_of(i.target)] > LAYERS[m.room]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_core_knows_other_frameworks_by_one_door(devrun_modules):
    """A config and a model are each given to it once; what comes of it is plain."""
    core = [m for m in devrun_modules if m.room in CORE]
    door = {
        (m.path, i.target) for m in core for i in m.imports if "interop" in i.target
    }
    assert door == {
        ("devrun/runners/training.py", "devrun.interop.translated"),
        ("devrun/runners/trial.py", "devrun.interop.read"),  # before it is shortened
        ("devrun/runners/session.py", "devrun.interop.contract_of"),
    }
    named = [
        f"{m.path}:{node.lineno} names {text!r}"
        for m in core
        for node, text in words_of(m.tree)
        if text.lower().startswith(FRAMEWORKS) and m.name not in ROWS
    ]
    assert not named, "\n".join(named)


def test_a_config_is_translated_before_anything_of_it_is_built(devrun_modules):
    owners = {
        node.name: node
        for m in devrun_modules
        if m.room == "runners"
        for node in ast.walk(m.tree)
        if isinstance(node, ast.FunctionDef)
        if {"translated", "contract_of"} & {text for _, text in words_of(node)}
    }
    assert owners.keys() == {"build_training", "model"}  # that of a session
    begins = owners["build_training"].body[1]  # after the docstring
    assert ast.unparse(begins).endswith(" = translated(cfg)")


def words_of(tree):
    """Names and texts of the code; of its documentation none."""
    told = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in told:
            yield node, str(node.value)
        for name in ("id", "attr", "arg", "name", "module"):
            if isinstance(text := getattr(node, name, None), str):
                yield node, text


def test_rooms_of_one_layer_do_not_import_each_other_in_a_circle(devrun_modules):
    names = {m.name: m for m in devrun_modules}
    assert _circle(_graph(names, lazy=False)) is None


def test_emulators_import_each_other_in_no_circle(devrun_modules):
    """Each under the root that it is imported from; imports in functions count."""
    root = "devrun.emulators."
    names = {m.name[len(root) :]: m for m in devrun_modules if m.name.startswith(root)}
    assert {"poptorch", "habana_frameworks"} <= names.keys()
    assert _circle(_graph(names, lazy=True)) is None


def test_imports_are_absolute_and_siblings_are_named_directly(devrun_modules):
    wrong = []
    fronts = {m.name for m in devrun_modules if m.is_package}
    names = {m.name for m in devrun_modules}
    for m in devrun_modules:
        package = m.name if m.is_package else m.name.rpartition(".")[0]
        for i in m.imports:
            if i.target.startswith("."):
                wrong.append(f"{m.path}:{i.line} is relative: {i.target}")
            through = _module_of(i.target, names)
            inside = package == through or package.startswith(f"{through}.")
            if through in fronts and through != "devrun" and inside:
                wrong.append(f"{m.path}:{i.line} goes through the front: {i.target}")
    assert not wrong, "\n".join(wrong)


def test_runners_know_no_concrete_adapter(devrun_modules):
    wrong = [
        f"{m.path}:{i.line} imports {i.target}"
        for m in devrun_modules
        if m.room == "runners"
        for i in m.imports
        if i.target.startswith("devrun.devices")
        if not i.target.startswith(OPEN_ADAPTER_DOORS)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_vendor_is_imported_only_in_a_function_of_its_sdk_file(modules):
    wrong = [
        f"{m.path}:{i.line} imports {i.target}"
        for m in modules
        if m.room != "emulators"
        for i in m.imports
        if i.target.split(".")[0] in VENDORS
        if not (_is_sdk(m) and i.in_function)
    ]
    assert not wrong, "\n".join(wrong)


def test_emulators_stand_alone_and_only_sdk_files_load_them(modules):
    wrong = [
        f"{m.path}:{i.line} imports {i.target}"
        for m in modules
        for i in m.imports
        if (m.room == "emulators" and is_ours(i.target))
        or (
            m.room != "emulators"
            and i.target.startswith("devrun.emulators")
            and not _is_sdk(m)
        )
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_importing_it_loads_no_torch_and_no_vendor(name):
    loaded = _loaded_by(f"import {name}")
    assert "torch" not in loaded
    assert not loaded & set(VENDORS)


def test_importing_the_runners_loads_no_vendor_and_no_emulator():
    loaded = _loaded_by(
        "import devrun.runners, devrun.hooks, devrun.devices", run=zygote.run
    )
    assert "torch" in loaded
    assert not loaded & set(VENDORS)
    assert not {name for name in loaded if name.startswith("devrun.emulators.")}


def test_importing_an_adapter_loads_no_other_and_no_probe():
    loaded = _loaded_by("import devrun.devices.cpu", run=zygote.run)
    folders = [f"devrun.devices.{name}" for name in ("cuda", "hpu", "ipu")]
    wrong = [n for n in loaded if n.startswith((*folders, "devrun.probes"))]
    assert not wrong, wrong


def test_the_rehearsal_knows_no_device(devrun_modules):
    """It asks an adapter for its probes: one out of the tree is asked the same."""
    adapters = tuple(target.partition(":")[0] for target in ADAPTERS.values())
    folders = tuple(
        name[: -len(".adapter")] for name in adapters if name.endswith(".adapter")
    )
    wrong = [
        f"{m.path}:{i.line} imports {i.target}"
        for m in devrun_modules
        if m.room in ("rehearsal", "probes")
        for i in m.imports
        if i.target.startswith((*adapters, *folders))
    ]
    assert not wrong, "\n".join(wrong)


def _is_sdk(module):
    return module.room == "devices" and module.path.endswith("/sdk.py")


def _graph(names, *, lazy):
    """What each module imports of the others; `lazy`: also when a function runs."""
    return {
        name: {
            found
            for i in module.imports
            if (lazy or not i.in_function) and i.target not in VERSION_ONLY
            if (found := _module_of(i.target, names)) and found != name
        }
        for name, module in names.items()
    }


def _module_of(target, names):
    """The module that importing `target` runs: itself, or what it is a name of."""
    if target in names:
        return target
    parent = target.rpartition(".")[0]
    return parent if parent in names else None


def _circle(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " -> ".join(error.args[1])
    return None


def _fresh(words):
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _loaded_by(code, run=_fresh):
    listing = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = run(["-c", listing])
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))
