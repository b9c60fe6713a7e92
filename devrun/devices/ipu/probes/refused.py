"""Refusals of the emulator's as findings, and what to write in place of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from devrun.devices.capture import Finding as Frozen
from devrun.devices.ipu.executors import first_sentences
from devrun.probes.finding import Finding
from devrun.probes.hosted import born_of, left_behind
from devrun.probes.keys import pasted
from devrun.probes.origins import PLACED, Host
from devrun.probes.sites import user_line

KIND = "cannot be compiled"
_MASK = "torch.where(mask, x, 0), and divide by mask.sum(): every shape stays the same"
_STACK = "layers of one each, one after another: nn.LSTM(..., num_layers=1) and so on"
_BY_NAME: Mapping[str, str] = {
    r"item|tolist|numpy|cpu|__(int|float|index|complex|array|format)__": "keep it a "
    "tensor; what is only logged is returned in log_vars",
    r"__bool__|is_nonzero|equal|allclose": "torch.where(condition, a, b) in place of "
    "the branch: both are computed, one is taken",
    r"masked_select|__getitem__": _MASK,
    r"nonzero|argwhere|where": "torch.where with three arguments, or the mask itself",
    r"unique.*|histc|repeat_interleave": "do it in the data set or its collate_fn",
    r"one_hot": "F.one_hot(x, num_classes=N)",
    r"bincount": "torch.bincount(x, minlength=N), N being the number of classes",
    r"cross_entropy|nll_loss": "without `weight`: loss = F.cross_entropy(x, y, "
    "reduction='none'), w = weight[y]; (loss * w).sum() / w.sum()",
    r"ctc_loss": "reduction='mean' or 'sum'",
    r"interpolate": "mode='nearest'; in one dimension also mode='bilinear' of "
    "x.unsqueeze(2)",
    r"_?pa(ck|d)_pa.*": "run the layer on the padded batch, and mask what it gives",
    r"lstm|gru|rnn_.*": f"{_STACK}; the other direction is one more layer on "
    "x.flip(time); nn.Dropout between them; no packed sequences",
    r"(adaptive_)?max_pool.*": "without return_indices",
    r"conv_transpose.*": "dilation=1",
    r"topk": "without sorted=False",
    r"__setitem__": "build the result with torch.stack or torch.cat, and no step in "
    "the slice",
    r"backward|register_hook|retain_grad": "remove it from forward: the compiler makes "
    "the gradients",
    r"loops": "options.Training.gradientAccumulation(N), N as the message has it",
    r"machine": "fewer IPUs: replicationFactor, and the IPUs of the blocks",
    r"buffers": "options.broadcastBuffers(False), where replicas may differ",
    r"loss": "poptorch.identity_loss(a + b, reduction='none') of the sum; what is only "
    "logged times 0, or under torch.no_grad()",
}
"""Pattern of the operation's whole name."""
_NUMBERS = {
    "number in half": (
        "half",
        "a number within 65504, such as -1e4, or torch.finfo(x.dtype).min",
    ),
    "is 0 in half": ("half", "one that half precision has, such as 1e-5"),
    "copyWeightsToDevice": ("lost write", "call it, or adapter.sync_to_device(model)"),
    "setOptimizer": ("lost write", "setOptimizer(optimizer) after scheduler.step()"),
    "loss function": ("other loss", "return poptorch.identity_loss(loss, 'none')"),
    "state_dict()": ("resume", "poptorch.optim in place of torch.optim: it has it"),
    "flags": ("lost write", "poptorch.inferenceModel(model) for what is not trained"),
    "requires_grad": ("lost write", "trainer.destroy() after it, to compile again"),
    "whole number": ("int64", "stay below 2**31, or compute it in the data set"),
}
"""Words of the message -> kind and remedy."""
_SPOKEN = {
    "__bool__": "branch on a value",
    "__getitem__": "boolean index",
    "__setitem__": "assignment to a slice",
}
_WRAPPED = "step.module."
"""What devrun has around the user's module."""
_GENERAL = "write it with other operations, or do it in the data set"


def finding_of(refusal: Any, *, fix: dict[str, Any] | None = None) -> Finding:
    """A refusal of the emulator's, at the user's own line.

    Args:
        fix: keys of a config with which it need not be compiled.
    """
    operation, site = refusal.operation, user_line(refusal.stack)
    if operation == "numbers":
        return _of_numbers(refusal, site)
    if refusal.value is not None:
        born = born_of([refusal.value]) or Host(operation, site)
        return left_behind(born, site, first_sentences(refusal.message))
    where = "" if refusal.training else " for the evaluation"
    text = first_sentences(refusal.message).replace(_WRAPPED, "")
    what = _SPOKEN.get(operation, operation.strip("_"))
    why = f"PopTorch refuses it{where}: {text}"
    remedy = _remedy(operation, text) + (f"; or {pasted(fix)}" if fix else "")
    return Finding("breaks", KIND, what, why, remedy, site, fix=fix)


def told(refusals: Iterable[Any]) -> list[Any]:
    """Those but of tensors that the user's code puts on CUDA, which is told there."""
    return [
        one for one in refusals if one.value is None or not PLACED.on_device(one.value)
    ]


def frozen(found: Frozen) -> Finding:
    """What a capture used up or changed of the host."""
    why = "Python code of forward runs only while the graph is captured"
    return Finding("differs", "once", found.what, why, found.remedy, found.site)


def _of_numbers(refusal: Any, site: str | None) -> Finding:
    """A number that its type cannot hold on an IPU."""
    kind, remedy = next(row for one, row in _NUMBERS.items() if one in refusal.message)
    what = refusal.message.partition(":")[0].strip("_")
    why = first_sentences(refusal.message)
    return Finding("differs", kind, what, why, remedy, site)


def _remedy(name: str, message: str) -> str:
    """One line for an operation that was refused with `message`."""
    if found := re.search(r"using (self\.\S+)\.copy_", message):
        return f"{found[1]}.copy_(value), in place"
    if found := re.search(r"(\w+) is added when", message):
        return f"make self.{found[1]} in __init__"
    if "torch.autograd.Function" in message:
        return "write its forward with torch's own operations, and no backward"
    for pattern, remedy in _BY_NAME.items():
        if re.fullmatch(pattern, name):
            return remedy
    return _GENERAL
