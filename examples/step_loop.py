"""Train with an exported step: onnxruntime does the updates, a loader of ours feeds it.

    devrun export work_dirs/resnet8_digits --step train --output step.onnx
    python examples/step_loop.py step.onnx 200

Any iterable of batches will do, of the shapes that the step was exported with.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy
import onnxruntime
from safetensors.numpy import load_file, save_file

from devrun.data import build_dataloader, build_dataset
from devrun.tensors import named_tensors


def train(step: str, loader: Iterable[Any], updates: int) -> dict[str, Any]:
    """Do so many updates, at a learning rate that falls to 0; the last state."""
    session = onnxruntime.InferenceSession(step)
    names = [output.name for output in session.get_outputs()]
    state = load_file(f"{step}.safetensors")
    rates = {name: rate for name, rate in state.items() if name.startswith("lr")}
    batches = chain.from_iterable(repeat(loader))
    for done, batch in enumerate(islice(batches, updates)):
        for name, rate in rates.items():
            state[name] = numpy.asarray(rate * (1 - done / updates), rate.dtype)
        given = {name: value.numpy() for name, value in named_tensors(batch, "batch")}
        outputs = dict(zip(names, session.run(names, {**state, **given})))
        print(f"update {done + 1}: loss {outputs.pop('loss'):.4f}")
        state.update({name[len("next.") :]: value for name, value in outputs.items()})
    return state


def main(step: str, updates: str) -> None:
    facts = json.loads(Path(f"{step}.json").read_text())
    count = next(iter(facts["batch"].values()))["shape"][0]
    loader = build_dataloader(build_dataset(facts["data"]), count, drop_last=True)
    state = train(step, loader, int(updates))
    own = {n[len("module.") :]: v for n, v in state.items() if n.startswith("module.")}
    save_file(own, "trained.safetensors")  # devrun test CONFIG trained.safetensors


if __name__ == "__main__":
    main(*sys.argv[1:])
