"""Private names of torch's stand in one module of each emulator, and are counted.

They are what breaks with the next torch, so their list grows only on purpose.
"""

import ast
import importlib

import pytest
import torch

HOMES = {
    "devrun/emulators/poptorch/_torch_private.py": """
        _C _base _buffers _modules _parameters _python_dispatch _pytree _subclasses
        _dispatch_has_kernel_for_dispatch_key
        _pack_padded_sequence _validate_args _version
        _scaled_dot_product_flash_attention_for_cpu
    """,
    "devrun/emulators/habana_frameworks/_emulation/torch_private.py": """
        _C _acc _autograd _backward_hooks _builtins _conj _copy_from
        _current_autograd_node _neg_view
        _current_graph_task_id _dispatch_has_backend_fallback _dispatch_key_for_device
        _dispatch_key_parse _dynamo _forward_hooks _forward_pre_hooks
        _fused_sdp_choice _get_sequence_nr _guards _has_same_storage_numel
        _index_put_impl_ _is_view _lazy_init _lineno_map _local_scalar_dense
        _make_wrapper_subclass _op _pack_padded_sequence
        _pack_padded_sequence_backward _register_builtin
        _register_device_module _reshape_alias _schema _sequence_nr
        _sleep _thnn_fused_gru_cell
        _thnn_fused_gru_cell_backward _thnn_fused_lstm_cell
        _thnn_fused_lstm_cell_backward_impl _to_copy _unique _unique2 _unsafe_index
        _unsafe_view _scaled_dot_product_fused_attention_overrideable
        _scaled_dot_product_fused_attention_overrideable_backward
    """,
}
"""Each home, and the names in it."""
NAMESPACES = ("torch.ops.aten", "torch.cuda")
"""Where a name in a string is looked up."""
PYTHONS = ("sys", "copyreg")
"""Modules of Python whose private names are no matter of torch's version."""


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name != "_"


def own_names(modules):
    """Private attributes and variables, and functions, that the emulators define."""
    held, functions = set(), set()
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                functions.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                held.add(node.id)
            elif isinstance(node, ast.Attribute):
                if isinstance(node.ctx, ast.Store) or holder(node) == "self":
                    held.add(node.attr)
    return held, functions


def holder(attribute):
    """`self` for self.x; an empty string for an attribute of something longer."""
    return attribute.value.id if isinstance(attribute.value, ast.Name) else ""


def private_names(module, held, functions):
    """(line, name) of each private name that is torch's."""
    modules_own = {name for name in dir(torch.nn.Module()) if is_private(name)}
    for node in ast.walk(module.tree):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(a.name for a in node.names)]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        if names:
            names = names if names[0] == "torch" else []
        elif isinstance(node, ast.Attribute):
            mine = holder(node) in ("self", "cls", *PYTHONS)
            if not mine and (
                node.attr in modules_own or node.attr not in held | functions
            ):
                names = [node.attr]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if is_private(text) and text not in held and is_torchs(text):
                names = [text]
        yield from ((node.lineno, name) for name in names if is_private(name))


def is_torchs(text):
    """Whether a string is an operator, or what a module of torch's holds."""
    places = (
        torch.ops.aten if name == "torch.ops.aten" else importlib.import_module(name)
        for name in NAMESPACES
    )
    return text.isidentifier() and any(hasattr(place, text) for place in places)


@pytest.fixture(scope="module")
def found(devrun_modules):
    """Path -> (line, name) of each private name of torch's in the emulators."""
    emulators = [m for m in devrun_modules if m.room == "emulators"]
    own = own_names(emulators)
    return {m.path: sorted(set(private_names(m, *own))) for m in emulators}


def test_no_other_module_names_what_is_private_to_torch(found):
    wrong = [
        f"{path}:{line} {name}"
        for path, uses in found.items()
        if path not in HOMES
        for line, name in uses
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", HOMES)
def test_the_list_of_private_names_grows_only_on_purpose(found, path):
    assert {name for _, name in found[path]} == set(HOMES[path].split())


def test_the_finder_finds_each_form(tmp_path):
    class Source:
        tree = ast.parse(
            "import torch._dynamo\n"
            "from torch.utils import _pytree\n"
            "module._buffers\n"
            "torch._C\n"
            "self._buffers\n"
            "mine._own\n"
            "handles('_to_copy')\n"
            "handles('_own')\n"
        )

    lines = {line for line, _ in private_names(Source, {"_own", "_buffers"}, set())}
    assert lines == {1, 2, 3, 4, 7}
