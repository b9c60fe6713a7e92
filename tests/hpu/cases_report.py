"""The report names the line of each planted fault, and is empty without faults."""

from __future__ import annotations

import dataclasses
import inspect

import torch
from torch import nn

from devrun.devices.hpu.probes.report import Report, ReportHook
from devrun.errors import UnsupportedFeatureError
from devrun.hooks import Hook
from tests.hpu.runs import MODE, device, loader, make
from tests.support.observe import Lines

MODES = ("lazy", "eager", "compile")


class Planted(nn.Module):
    """A classifier with one of four faults, or with what to write in its place."""

    def __init__(self, fault: str, remedied: bool = False) -> None:
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


def report_of(model, data=None, epochs=2, **options):
    """The rows at the end of a run, and what was logged."""
    with Lines() as log:
        runner, _ = make(device(**options), model=model, epochs=epochs)
        hook = ReportHook(after=6)
        runner.register_hook(hook)
        runner.run([loader() if data is None else data], [("train", 1)])
        runner.close()
    return hook.report.rows(), log.text


def _found_and_cured(fault, kind):
    rows, text = report_of(Planted(fault))
    mine = [row for row in rows if row.site.file == __file__ and row.kind == kind]
    assert line_of(fault) in {row.site.line for row in mine}, rows
    assert all(row.times >= 1 and row.remedy for row in rows)
    assert f"{mine[0].site}: {mine[0].remedy}" in text
    rows, text = report_of(Planted(fault, remedied=True))
    assert rows == [], rows
    assert "0 findings" in text


def test_boolean_indexing():
    _found_and_cured("mask", "host waits")


def test_a_number_read_in_the_loss():
    _found_and_cured("item", "host waits")


def test_strict_makes_a_finding_an_error():
    runner, _ = make(device(), model=Planted("item"))
    runner.register_hook(ReportHook(after=6, strict=True))
    try:
        runner.run([loader()], [("train", 1)])
    except UnsupportedFeatureError as error:
        assert f"{__file__}:{line_of('item')}" in str(error)
        assert runner.iter == 5  # the sixth update is over
    else:
        raise AssertionError("no error")
    finally:
        runner.close()
    runner, _ = make(device(), model=Planted("item", remedied=True))
    asked = {"type": "devrun.devices.hpu.probes.report.ReportHook", "strict": True}
    runner.register_hook_from_cfg(asked)
    runner.run([loader()], [("train", 1)])
    runner.close()


class Lengths(torch.utils.data.Dataset):
    """Sequences of 1 to 24 rows."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.ones(index + 1, 4), index % 3


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x).mean(1)


def test_batches_of_many_lengths_are_told_apart_from_the_model():
    if MODE["mode"] == "eager":  # nothing is compiled there
        return
    data = torch.utils.data.DataLoader(Lengths())
    rows, _ = report_of(Pooled(), data, epochs=1)
    assert [(r.kind, str(r.site)) for r in rows] == [
        ("compiled again", "the data loader")
    ]
    assert "buckets" in rows[0].remedy


class Metered(Hook):
    """What a report would say of a real SDK, which has no emulator to ask."""

    def __init__(self, runner):
        sdk = dataclasses.replace(runner.adapter.sdk, emulator=None)
        self.report = Report(sdk, MODE["mode"], window=6)

    def before_train_iter(self, runner):
        self.watching = self.report.watching(None)
        self.watching.__enter__()

    def after_train_iter(self, runner):
        self.watching.__exit__(None, None, None)
        self.report.count_update()


def test_without_the_emulator_the_first_updates_give_the_lines():
    if MODE["mode"] == "compile":
        return
    for fault in ("op", "item"):
        runner, _ = make(device(), model=Planted(fault), epochs=1)
        runner.prepare()
        meter = Metered(runner)
        runner.register_hook(meter)
        runner.run([loader()], [("train", 1)])
        runner.close()
        rows = meter.report.rows()
        assert line_of(fault) in {row.site.line for row in rows}, rows
