"""Operators of Gaudi's list on the emulated device, by PyTorch's OpInfo samples.

    PYTHONPATH=devrun/emulators python tests/emulators/habana/opinfo.py [NAME ...]

Values, types and, in float32, gradients against the CPU; what differs is a line each.
"""

import sys
import warnings

import habana_frameworks.torch  # noqa: F401 - which brings the device
import torch
from habana_frameworks._emulation.support import supported_names
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
SAMPLES = 3


def main(names):
    """Print what differs and the counts; 1 where something differs."""
    listed = {name.partition(".")[0] for name in supported_names()}
    warnings.simplefilter("ignore")
    passed, failed = 0, 0
    for op in op_db:
        if op.aten_name not in listed or (names and op.name not in names):
            continue
        for dtype in DTYPES:
            if dtype not in op.supported_dtypes("cpu") or _draws(op):
                continue
            why = _difference(op, dtype)
            passed, failed = passed + (not why), failed + bool(why)
            if why:
                print(f"{op.name} {op.variant_test_name} {dtype}: {why}", flush=True)
    print(f"{passed} passed, {failed} failed, an operator and a type each")
    return int(failed > 0)


def _difference(op, dtype):
    """What differs from the CPU in the first samples; empty where nothing does."""
    grads = dtype is torch.float32 and op.supports_autograd
    for number, sample in enumerate(
        op.sample_inputs("cpu", dtype, requires_grad=grads)
    ):
        if number == SAMPLES:
            break
        try:
            theirs = _run(op, sample, "cpu", grads)
        except (RuntimeError, NotImplementedError):  # the CPU's own refusal
            continue
        try:
            mine = _run(op, sample, "hpu", grads)
            torch.testing.assert_close(mine, theirs, equal_nan=True)
        except Exception as error:  # noqa: BLE001 - which is told
            return f"sample {number}: {type(error).__name__}: {error}".split("\n")[0]
    return ""


def _run(op, sample, device, grads):
    """Results, then gradients of the inputs, as tensors of the host."""

    def moved(value):
        if not isinstance(value, torch.Tensor):
            return value
        # with the memory around a view, which `as_strided` reaches
        memory = value.detach().new_empty(0).set_(value.untyped_storage()).to(device)
        view = memory.as_strided(value.shape, value.stride(), value.storage_offset())
        return view.requires_grad_(value.requires_grad)

    factory = {"device": device} if "device" in sample.kwargs else {}
    whole = (sample.input, sample.args, {**sample.kwargs, **factory})
    given = tree_map(moved, whole)
    torch.manual_seed(0)
    out = op(given[0], *given[1], **given[2])
    results = [each for each in tree_flatten(out)[0] if isinstance(each, torch.Tensor)]
    if any(each.device.type != device for each in results):
        raise AssertionError(f"a result is not on {device}")
    found = [each.detach().cpu() for each in results]
    if grads:
        ends = [each for each in results if each.requires_grad]
        leaves = [each for each in tree_flatten(given)[0] if _wants_gradient(each)]
        if ends and leaves:
            ones = [torch.ones_like(each) for each in ends]
            got = torch.autograd.grad(ends, leaves, ones, allow_unused=True)
            found += [each if each is None else each.cpu() for each in got]
    return found


def _wants_gradient(value):
    return isinstance(value, torch.Tensor) and value.requires_grad


def _draws(op):
    """Whether its results are no matter of its inputs alone."""
    return op.name.startswith(("empty", "new_empty")) or op.name in DRAWING


DRAWING = frozenset(
    (
        *("bernoulli", "cauchy", "exponential", "geometric", "log_normal"),
        *("multinomial", "normal", "rand_like", "randint", "randint_like", "randn"),
        *("randn_like", "uniform", "nn.functional.dropout", "nn.functional.rrelu"),
    )
)
"""The device has a random stream of its own."""

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
