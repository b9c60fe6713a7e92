"""`devrun check SCRIPT.py`: programs that know nothing of devrun."""

from __future__ import annotations

import json

import pytest

from devrun.cli.main import main
from devrun.probes.kinds import devices_of, is_program
from devrun.rehearsal.check import check_program

POPTORCH = """
import argparse

import poptorch
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, mended):
        super().__init__()
        self.fc, self.mended = nn.Linear(4, 3), mended
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x, y):
        out = self.fc(x)
        if self.mended:
            out = torch.where(out.sum() > 0, out * 2, out)
            return self.loss(out, y)
        if out.sum() > 0:  # branch
            out = out * 2
        return self.loss(out[y > 0], y[y > 0])  # mask


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--device")
    args = parser.parse_args()
    print("this is the program's own output")
    torch.manual_seed(0)
    model, options = Net(args.mended), poptorch.Options()
    data = torch.utils.data.TensorDataset(
        torch.randn(32, 4), torch.arange(32) % 3
    )
    loader = poptorch.DataLoader(options, data, batch_size=4, shuffle=True)
    sgd = poptorch.optim.SGD(model.parameters(), lr=0.1)
    trainer = poptorch.trainingModel(model, options, sgd)
    done = 0
    while done < args.steps:
        for x, y in loader:
            trainer(x, y)
            done += 1
    if args.device:
        raise LookupError(args.device)  # raises


if __name__ == "__main__":
    main()
"""
GAUDI = """
import sys

import habana_frameworks.torch.core as htcore
import torch
from torch import nn

faults = sys.argv[1:]
model = nn.Linear(4, 3).to("hpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    rows = 8 + step if "shapes" in faults else 8
    x = torch.randn(rows, 4).to("hpu")
    y = torch.arange(rows).remainder(3).to("hpu")
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # grows
    if "marks" not in faults:
        htcore.mark_step()  # mark
    if "item" in faults:
        print(loss.item())  # item
    if "svd" in faults:
        torch.linalg.svd(model.weight.detach())  # svd
    if "wide" in faults:
        loss.detach().double()  # wide
print("the last loss is", loss.item())
if "status" in faults:
    sys.exit(3)  # status
"""
LACKING = """
import habana_frameworks.torch.core as htcore
import no_such_plots as plots  # lacks
import torch


def drawn(values):
    figure = plots.figure()
    figure.plot(values)
    return figure


print(torch.ones(2).to("hpu").sum())
drawn([1, 2]).save("one.png")
plots.show()
"""
INFERENCE = """
import habana_frameworks.torch.core as htcore
import torch
from torch import nn

model = nn.Linear(4, 3).to("hpu")
for step in range(3):
    out = model(torch.randn(8, 4).to("hpu"))
    positive = out[out > 0].sum()  # masked
    print(positive)  # printed
print("the last is", positive)
"""
ENDLESS = """
import habana_frameworks.torch.core as htcore
import torch
from torch import nn

model = nn.Linear(4, 3).to("hpu")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(10**9):  # loop
    for step in range(10):
        loss = model(torch.randn(8, 4).to("hpu")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        htcore.mark_step()
        optimizer.step()
        htcore.mark_step()
print("the last", [9].index(model.weight.argmax().item()))  # not learnt yet
print((model.weight + torch.zeros(3, 4)).sum())  # host
"""


def line(path, text):
    lines = path.read_text().splitlines()
    (number,) = [n for n, each in enumerate(lines, 1) if text in each]
    return f"{path}:{number}"


@pytest.fixture
def script(tmp_path):
    """`script(source)` -> its path."""

    def write(source, name="train.py"):
        path = tmp_path / name
        path.write_text(source)
        return path

    return write


def brief(found):
    (device,) = found.devices
    return sorted((f.severity, f.kind, f.site) for f in device.findings)


def test_all_that_poptorch_refuses_of_a_program_and_what_ends_it(script, capsys):
    path = script(POPTORCH)
    words = ["check", "--json", str(path), "--steps", "2", "--device", "mine"]
    assert main(words) == 11
    printed = capsys.readouterr()
    assert "own output" not in printed.out + printed.err
    (device,) = json.loads(printed.out)["devices"]
    assert device["device"] == "ipu"
    found = {f["site"]: f for f in device["findings"]}
    assert {site: f["kind"] for site, f in found.items()} == {
        line(path, "# branch"): "cannot be compiled",
        line(path, "# mask"): "cannot be compiled",
        line(path, "# raises"): "raises",
    }
    assert "LookupError: mine" in found[line(path, "# raises")]["why"]


def test_a_sound_program_gives_nothing(script, capsys):
    path = script(POPTORCH)
    assert main(["check", "--device", "ipu", str(path), "--mended"]) == 0
    text = capsys.readouterr().out
    assert "the program, to its end" in text
    assert brief(check_program(str(script(GAUDI)))) == []


def test_a_program_that_does_not_use_the_device_is_not_clean(script):
    path = script("import torch\nprint(torch.ones(2).sum())\n")
    found = check_program(str(path), devices=("ipu",))
    assert brief(found) == [("advice", "not used", f"{path}:1")]
    found = check_program(str(path), devices=("hpu",))
    assert ("breaks", "not imported", f"{path}:1") in brief(found)
    path = script("import habana_frameworks.torch, torch\nprint(torch.ones(2).sum())\n")
    assert brief(check_program(str(path))) == [("advice", "not used", None)]


def test_a_program_whose_loader_spawns_its_workers(script):
    spawned = "num_workers=1, mode=poptorch.DataLoaderMode.Async"
    path = script(POPTORCH.replace("shuffle=True", spawned))
    found = check_program(str(path), ("--mended",))
    assert brief(found) == []
    assert found.devices[0].facts["compilations"] == 1


def test_a_package_that_is_not_there_is_one_finding(script):
    path = script(LACKING)
    found = check_program(str(path))
    raised = [f for f in found.devices[0].findings if f.kind == "raises"]
    assert [f.site for f in raised] == [line(path, "# lacks")]
    assert "install what has 'no_such_plots'" in raised[0].remedy


def test_what_a_gaudi_does_slowly_where_nothing_is_trained(script):
    path = script(INFERENCE)
    found = check_program(str(path))
    waits = {f.site for f in found.devices[0].findings if f.kind == "host waits"}
    assert waits == {line(path, "# masked"), line(path, "# printed")}


def test_what_a_gaudi_does_slowly_in_a_program(script):
    path = script(GAUDI)
    found = check_program(str(path), ("item", "svd", "wide", "shapes", "status"))
    assert [device.device for device in found.devices] == ["hpu"]
    kinds = {(f.kind, f.site): f for f in found.devices[0].findings}
    assert set(kinds) >= {
        ("host waits", line(path, "# item")),
        ("on the host", line(path, "# svd")),
        ("float64", line(path, "# wide")),
        ("raises", line(path, "# status")),
    }
    assert any("shape" in f.what for (kind, _), f in kinds.items() if "again" in kind)
    assert kinds["host waits", line(path, "# item")].per_step == 1
    assert found.devices[0].facts["updates"] == 8


def test_a_lazy_loop_without_marks(script):
    path = script(GAUDI)
    found = check_program(str(path), ("marks",))
    assert brief(found) == [("slow", "no step mark", line(path, "# grows"))]
    (one,) = found.devices[0].findings
    assert "mark_step()" in one.remedy


def test_what_comes_after_a_long_training_is_seen(script, capsys):
    path = script(ENDLESS)
    assert main(["check", "--timeout", "40", str(path)]) == 11
    text = capsys.readouterr().out
    assert "a loop cut short" in text
    for place in ("# loop", "# host"):
        assert f"    at {line(path, place)}\n" in text
    assert text.count("    at ") == 2


@pytest.mark.slow  # it waits for the end of its time
def test_a_program_that_does_not_end_is_ended(script):
    source = POPTORCH.replace("while done < args.steps:", "while True:  # endless")
    path = script(source)
    found = check_program(str(path), timeout=20)
    assert ("advice", "not to its end", line(path, "# endless")) in brief(found)
    assert ("breaks", "cannot be compiled", line(path, "# mask")) in brief(found)


CONFIG = """
import os
from torch.optim import AdamW
with read_base():
    from .base import *
optimizer = dict(type=AdamW)
"""


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (POPTORCH, True),
        ("def f():\n    import habana_frameworks.torch\n", True),
        ("import torchvision\nprint(1)\n", False),
        ("import torch\nprint(torch.ones(1))\n", True),
        ("import torch\nmodel = dict(type='A')\nprint(torch.ones(1))\n", False),
        ("import torch\n_base_ = 'x.py'\nprint(torch.ones(1))\n", False),
        (CONFIG, False),
        ("model = dict(type='ResNet')\n", False),
        ("import torch\nprint('", False),
        ("model: {type: ResNet}\n", False),
    ],
)
def test_a_program_is_told_by_its_syntax(script, source, wanted):
    assert is_program(str(script(source, "any.txt"))) == wanted


def test_what_is_named_or_looks_like_a_config_is_never_run(script, tmp_path, capsys):
    ran = tmp_path / "ran"
    code = f"import torch\nopen({str(ran)!r}, 'w')\n"
    for name, source in (
        ("a.yaml", code),
        ("b.json", code),
        ("c.py", f"model = dict(type='MLP')\n{code}"),
        ("d.py", f"_base_ = []\n{code}"),
    ):
        path = script(source, name)
        assert main(["check", str(path), "--device", "ipu"]) == 2
        assert not ran.exists()
    assert capsys.readouterr().err.count("devrun: error: ") == 4


def test_the_sdk_may_be_imported_beside_the_program(script, tmp_path):
    script("import poptorch\nimport train\n", "helper.py")
    assert devices_of(str(script("import torch, helper\n"))) == ["ipu"]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], "imports neither habana_frameworks nor poptorch"),
        (["--device", "hpu,cuda"], "not on 'cuda'"),
    ],
)
def test_a_program_for_no_emulator(script, capsys, words, wanted):
    path = script("import torch\nprint(torch.ones(1))\n")
    assert main(["check", *words, str(path), "--device", "ipu"]) == 2
    assert wanted in capsys.readouterr().err
