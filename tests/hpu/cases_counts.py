"""Each planted fault is counted at its line, and nothing is found without faults."""

import inspect

import torch
from torch import nn

from tests.hpu.runs import MODE, Counting, device, loader, make

MODES = ("lazy", "eager", "compile")
FAULTS = {"mask": "host waits", "item": "host waits", "op": "on the host"}


class Planted(nn.Module):
    """A classifier with one of four faults, or with what to write in its place."""

    def __init__(self, fault, remedied=False):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.fault, self.remedied = fault, remedied
        self.memory = []
        self.register_buffer("recent", torch.zeros(4, 8))

    def forward(self, x):
        h = torch.tanh(self.body(x))
        if self.fault == "mask" and not self.remedied:
            return self.head(h + h[h > 0].sum())  # FAULT mask
        step = getattr(self, f"{self.fault}_{'remedied' if self.remedied else 'plain'}")
        return self.head(step(h))

    def mask_remedied(self, h):
        return h + (h * (h > 0)).sum()

    def op_plain(self, h):
        return h + torch.special.i1e(h)  # FAULT op

    def op_remedied(self, h):
        return h + torch.sigmoid(h)

    def grow_plain(self, h):
        self.memory.append(h.detach().mean(0, keepdim=True))
        return h + torch.cat(self.memory).mean(0)  # FAULT grow

    def grow_remedied(self, h):
        newest = h.detach().mean(0, keepdim=True)
        self.recent.copy_(torch.cat([self.recent[1:], newest]))
        return h + self.recent.clone().mean(0)

    def item_plain(self, h):
        return h

    item_remedied = item_plain

    def train_step(self, data, optimizer):
        inputs, labels = data
        loss = nn.functional.cross_entropy(self(inputs), labels)
        log_vars = {"loss": loss}
        if self.fault == "item" and not self.remedied:
            log_vars["loss"] = loss.item()  # FAULT item
        return {"loss": loss, "log_vars": log_vars, "num_samples": len(inputs)}


def line_of(fault):
    lines, first = inspect.getsourcelines(Planted)
    return first + next(i for i, s in enumerate(lines) if f"FAULT {fault}" in s)


def found_in(model):
    torch.compiler.reset()
    runner, _ = make(device(), model=model, epochs=1)
    counting = Counting()
    runner.register_hook(counting)
    runner.run([loader()], [("train", 1)])
    runner.close()
    return counting.findings


def test_each_fault_is_found_at_its_line_and_cured_by_its_remedy():
    for fault in FAULTS:
        wanted = FAULTS[fault], f"{__file__}:{line_of(fault)}"
        found = found_in(Planted(fault))
        mine = [f for f in found if (f.kind, f.site) == wanted]
        assert mine and all(f.per_step >= 1 for f in mine), found
        assert found_in(Planted(fault, remedied=True)) == []


def test_shapes_that_grow_are_compiled_again():
    if MODE["mode"] != "lazy":  # others compile nothing, or give up after some times
        return
    found = {f.kind: f for f in found_in(Planted("grow"))}
    assert found["compiled again"].what.startswith("shape")
    assert found_in(Planted("grow", remedied=True)) == []
