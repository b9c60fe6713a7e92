"""Pairs of trainings with a planted fault, or without any, and what is to be named.

`python -m tests.rehearsal.pairs` runs all of them and prints what was named.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import yaml

from devrun.cli.main import main
from tests.rehearsal.planted import SOURCE

SGD = {"type": "SGD", "lr": 0.05, "momentum": 0.9}
ADAM = {"type": "Adam", "lr": 0.01}
BASE = {
    "model": {"type": "Planted"},
    "loss": {"type": "CrossEntropyLoss"},
    "data": {
        "samples_per_gpu": 8, "workers_per_gpu": 0, "train": {"type": "Drawn"},
    },
    "optimizer": SGD,
    "runner": {"type": "EpochBasedRunner", "max_epochs": 2},
}  # fmt: skip
GAN = {
    "model": {"type": "Adversarial"},
    "loss": None,
    "optimizer": {"critic": ADAM, "generator": SGD},
}
CONVOLVED = {"model": {"type": "Convolved"}, "optimizer": ADAM}
AUGMENTED = {"data": {**BASE["data"], "train": {"type": "Drawn", "draws": "seeded"}}}
OWN = {"optimizer_config": {"type": "OwnUpdate"}}
BF16 = {"optimizer_config": {"precision": "bf16"}}


class Pair(NamedTuple):
    """Two trainings.

    Attributes:
        found: the beginning of (step, kind, name), and the end of it a word that has
            to be in what else is said; None where they agree.
        both: what of the config is not as in `BASE`.
        second: what of the second config is not as in the first.
        flags: what is compared, if not two configs.
        edit: a line of the program and that of the second commit.
        slow: run by `make test-slow` only.
    """

    found: tuple[int, str, str, str] | None
    both: dict = {}
    second: dict = {}
    flags: tuple[str, ...] = ()
    edit: tuple[str, str] | None = None
    steps: int = 2
    slow: bool = False


def planted(name, **more):
    return {"model": {"type": "Planted", "plant": name, **more}}


def with_data(**changes):
    return {"data": {**BASE["data"], **changes}}


HPU, IPU = ("--devices", "cpu,hpu"), ("--devices", "cpu,ipu")
LOW = ("--precisions", "fp32,bf16")
UNSEEDED = {"type": "Drawn", "draws": "unseeded"}
CONFIGS = {
    "epsilon of Adam": Pair(
        (1, "update", "", ""), {"optimizer": ADAM}, {"optimizer": {**ADAM, "eps": 1e-6}}
    ),
    "dampening": Pair((2, "update", "", ""), {}, {"optimizer": {**SGD, "dampening": 0.1}}),
    "learning rate": Pair((1, "update", "", ""), {}, {"optimizer": {**SGD, "lr": 0.0501}}),
    "weight decay": Pair(
        (1, "update", "", ""), {}, {"optimizer": {**SGD, "weight_decay": 1e-3}}
    ),
    "schedule": Pair(
        (4, "update", "", ""), {},
        {"lr_config": {"policy": "step", "step": 3, "by_epoch": False}}, steps=4,
    ),
    "clipping": Pair((1, "gradient", "", ""), {}, {"optimizer_config": {"grad_clip": {"max_norm": 0.1}}}),
    "label smoothing": Pair(
        (1, "loss", "loss", ""), {}, {"loss": {"type": "CrossEntropyLoss", "label_smoothing": 0.1}}
    ),
    "momentum of statistics": Pair(
        (1, "buffer", "norm.running_mean", ""), {}, {"model": {"type": "Planted", "norm": {"momentum": 0.01}}}
    ),
    "epsilon of a norm": Pair(
        (1, "activation", "norm", "batch_norm"), {}, {"model": {"type": "Planted", "norm": {"eps": 1e-3}}}
    ),
    "norm left in eval mode": Pair(
        (1, "activation", "second", ""), {"model": {"type": "Convolved"}},
        {"model": {"type": "Convolved", "eval": True}},
    ),
    "buffer of the model": Pair((1, "buffer", "mean", ""), {}, planted("average")),
    "dropout rate": Pair((1, "dropout", "drop.p", ""), {}, planted("", drop=0.1)),
    "stochastic depth": Pair((1, "dropout", "path.drop_prob", ""), {}, planted("", path=0.1)),
    "dropout on one side": Pair((1, "dropout", "drop.p", "only first.yaml"), {}, planted("", flagged=False)),
    "transposed mask": Pair((1, "activation", "attention", "aten.t.default"), {}, planted("mask")),
    "half precision inside": Pair((1, "activation", "block.hidden", "aten._to_copy"), {}, planted("half")),
    "faint factor": Pair((1, "activation", "block.hidden", "aten.mul"), {}, planted("faint")),
    "halved gradient": Pair((1, "gradient", "block.hidden.linear.weight", ""), {}, planted("gradient")),
    "between two modules": Pair((1, "input", "block", "aten.mul"), {}, planted("between")),
    "after the last module": Pair((1, "activation", "", "aten.mul"), {}, planted("output")),
    "frozen weight": Pair((1, "gradient", "block.tail.weight", "only first.yaml"), {}, planted("frozen")),
    "other first weights": Pair((1, "activation", "block.tail", ""), {}, planted("first weights")),
    "unseeded draw, second": Pair((1, "activation", "block.hidden", "second.yaml parts from itself"), {}, planted("unseeded")),
    "unseeded draw, both": Pair((1, "activation", "block.hidden", "first.yaml parts from itself"), planted("unseeded"), {"optimizer": {**SGD, "lr": 0.06}}),
    "unseeded augmentation": Pair((1, "batch", "[0]", "second.yaml parts from itself"), {}, with_data(train=UNSEEDED)),
    "order of the data": Pair((1, "batch", "[0]", ""), {}, with_data(shuffle=False)),
    "GAN: learning rate of one half": Pair((1, "update", "generator.", ""), GAN, {"optimizer": {"critic": ADAM, "generator": {**SGD, "lr": 0.06}}}),
    "GAN: epsilon of the other": Pair((1, "update", "critic.", ""), GAN, {"optimizer": {"critic": {**ADAM, "eps": 1e-4}, "generator": SGD}}),
    "GAN: weights clamped": Pair((1, "activation", "critic.2", ""), GAN, {"model": {"type": "Adversarial", "plant": "clamped"}}),
    "GAN: factor of a loss": Pair((1, "gradient", "generator.", ""), GAN, {"model": {"type": "Adversarial", "plant": "loss"}}),
    "hook with its own update": Pair((1, "gradient", "", ""), OWN, {"optimizer_config": {"type": "OwnUpdate", "factor": 0.9}}),
    "hook that changes a weight": Pair((1, "update", "head.weight", ""), {}, {"custom_hooks": [{"type": "Shrink", "factor": 0.999}]}),
}  # fmt: skip
PRECISIONS = {
    "a mask in half precision": Pair((1, "activation", "attention", "aten.t.default"), planted("half precision: mask"), flags=LOW),
    "a factor in half precision": Pair((1, "activation", "", "aten.mul"), planted("half precision: output"), flags=LOW),
    "a buffer in half precision": Pair((1, "buffer", "mean", ""), planted("half precision: average"), flags=LOW),
}  # fmt: skip
DEVICES = {
    "hpu: epsilon of the fused Adam": Pair((1, "update", "", ""), {"optimizer": ADAM}, flags=HPU),
    "hpu: mask": Pair((1, "activation", "attention", "aten.t.default"), planted("hpu: mask"), flags=HPU),
    "hpu: gradient": Pair((1, "gradient", "block.hidden.linear.weight", ""), planted("hpu: gradient"), flags=HPU, slow=True),
    "hpu: between": Pair((1, "input", "block", "aten.mul"), planted("hpu: between"), flags=HPU, slow=True),
    "hpu: buffer": Pair((1, "buffer", "mean", ""), planted("hpu: average"), flags=HPU, slow=True),
    "hpu: unseeded draw": Pair((1, "activation", "block.hidden", "hpu parts from itself"), planted("hpu: unseeded"), flags=HPU),
    "ipu: mask": Pair((1, "loss", "loss", ""), planted("ipu: mask"), flags=IPU),
    "ipu: output": Pair((1, "loss", "loss", ""), planted("ipu: output"), flags=IPU, slow=True),
    "ipu: buffer": Pair((1, "buffer", "mean", ""), planted("ipu: average"), flags=IPU, slow=True),
}  # fmt: skip
COMMITS = {
    "commit: a nonlinearity": Pair((1, "activation", "block.hidden", "dr_planted.py:"), edit=("torch.tanh(", "torch.sigmoid(")),
    "commit: between two modules": Pair((1, "input", "block", "dr_planted.py:"), edit=("return self.tail(x)", "return self.tail(x + 0.01)")),
    "commit: the model's output": Pair((1, "activation", "", "dr_planted.py:"), edit=("x = self.head(x)", "x = self.head(x).clamp(-1, 0.1)")),
    "commit: a scale": Pair((1, "activation", "attention", "dr_planted.py:"), edit=("8**0.5", "4**0.5")),
    "commit: a buffer": Pair((1, "buffer", "mean", ""), edit=("else 0.1", "else 0.2")),
    "commit: the loss of a GAN": Pair((1, "gradient", "generator.", ""), GAN, edit=("else fooled)", "else 0.9 * fooled)")),
    "commit: a default": Pair((1, "dropout", "drop.p", ""), edit=("drop=0.3", "drop=0.2")),
}  # fmt: skip
CLEAN = {
    "two optimizers' configs": Pair(None, {"optimizer": SGD}, {"optimizer": {**SGD, "dampening": 0.0}}),
    "bf16": Pair(None, flags=LOW),
    "bf16, Adam, biases before norms": Pair(None, CONVOLVED, flags=LOW),
    "bf16, LSTM": Pair(None, {"model": {"type": "Recurrent"}}, flags=("--precisions", "bf16,fp32"), slow=True),
    "commit: the order of a sum": Pair(None, edit=("(q @ k.transpose(-1, -2))", "(q[..., :4] @ k[..., :4].mT + q[..., 4:] @ k[..., 4:].mT)")),
    "commit: a norm written out": Pair(None, CONVOLVED, edit=("self.first(self.stem(x))", "self.first(self.stem(x) + 1e-7)"), steps=4),
    "hpu": Pair(None, flags=HPU),
    "hpu, biases before norms": Pair(None, {"model": {"type": "Convolved"}}, flags=HPU, steps=3),
    "hpu, LSTM": Pair(None, {"model": {"type": "Recurrent"}}, flags=HPU, slow=True),
    "hpu, GAN": Pair(None, {**GAN, "optimizer": {"critic": SGD, "generator": SGD}}, flags=HPU),
    "hpu, augmentation": Pair(None, AUGMENTED, flags=HPU, slow=True),
    "hpu, bf16": Pair(None, BF16, flags=HPU, slow=True),
    "ipu": Pair(None, flags=IPU),
    "ipu, Adam, biases before norms": Pair(None, CONVOLVED, flags=IPU, steps=3),
    "ipu, LSTM": Pair(None, {"model": {"type": "Recurrent"}}, flags=IPU, slow=True),
    "ipu, augmentation": Pair(None, AUGMENTED, flags=IPU, slow=True),
    "hpu, two batches an update": Pair(None, {"optimizer_config": {"cumulative_iters": 2}}, flags=HPU, slow=True),
    "ipu, two batches an update": Pair(None, {"optimizer_config": {"cumulative_iters": 2}}, flags=IPU),
}  # fmt: skip
PAIRS = {**CONFIGS, **PRECISIONS, **DEVICES, **COMMITS, **CLEAN}


def device_of(name):
    """That is emulated for it, in a process of its own."""
    return PAIRS[name].flags[-1][4:] if "--devices" in PAIRS[name].flags else "cpu"


def compared(name):
    """The status, the result and what was written on stderr, in the present folder."""
    pair = PAIRS[name]
    first = {**BASE, **pair.both}
    for file, cfg in (("first.yaml", first), ("second.yaml", {**first, **pair.second})):
        kept = {key: value for key, value in cfg.items() if value is not None}
        Path(file).write_text(yaml.safe_dump(kept))
    flags = (*pair.flags, "--steps", str(pair.steps))
    if "--devices" in flags:
        return _run("first.yaml", *flags, "--emulate")
    if pair.edit is None:
        pair_of = ["first.yaml"] if pair.flags else ["first.yaml", "second.yaml"]
        return _run(*pair_of, *flags, "--device", "cpu")
    _program(SOURCE)
    status, found, said = _run(
        "first.yaml", "--device", "cpu", *flags, "--record", "kept"
    )
    assert (status, said) == (0, ""), said
    _program(SOURCE.replace(*pair.edit))
    try:
        return _run("first.yaml", "--device", "cpu", *flags, "--against", "kept")
    finally:
        _program(SOURCE)


def right(name, status, found):
    """Whether `found` names what it should."""
    expected = PAIRS[name].found
    parting = (found or {}).get("parting")
    if expected is None:
        return status == 0 and found is not None and parting is None
    step, kind, start, word = expected
    if status != 10 or not parting:
        return False
    told = json.dumps(parting)
    if "parts from itself" in word:
        told = f"{parting.get('alone')} parts from itself"
    return (
        (parting["step"], parting["kind"]) == (step, kind)
        and (
            parting["name"].startswith(start)
            if start
            else kind == "update" or kind == "gradient" or not parting["name"]
        )
        and word in told
    )


def _program(text):
    """Put `text` in the place of the program, as another commit would."""
    if sys.modules.pop("dr_planted", None) is not None:
        from devrun.registry import DATASETS, HOOKS, MODELS

        for registry in (DATASETS, HOOKS, MODELS):
            for key, kind in list(registry.module_dict.items()):
                if kind.__module__ == "dr_planted":
                    del registry.module_dict[key]
    Path("dr_planted.py").write_text(text)
    import importlib

    importlib.invalidate_caches()


def _run(*words):
    out, err = io.StringIO(), io.StringIO()
    words = ["compare", *words, "--import", "dr_planted"]
    if "--record" not in words:
        words.append("--json")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(words)
        except SystemExit as stop:
            status = stop.code
    text = out.getvalue()
    return status, json.loads(text) if text.startswith("{") else None, err.getvalue()


def all_of(names):
    """name -> what `compared` gives, in a folder of its own."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        sys.dont_write_bytecode = True
        _program(SOURCE)
        for name in names:
            yield name, compared(name)
        os.chdir(here)


if __name__ == "__main__":
    device, *chosen = sys.argv[1:]
    for name, result in all_of(n for n in chosen or PAIRS if device_of(n) == device):
        print(json.dumps([name, *result]), flush=True)
