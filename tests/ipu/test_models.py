"""Models of each kind, split or not, on emulated IPUs."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from tests.ipu.harness import assert_same_state, ipu, loader, make, net, train
from tests.support.strict import zip_strict

CLOSE = {"rtol": 1e-4, "atol": 1e-6}


def edges(*pairs):
    return [{"layer_to_call": name, "ipu_id": place} for name, place in pairs]


class Deep(nn.Module):
    """A stem, four like blocks, and a head."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(32, 16)
        blocks = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)]
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = self.stem(x.flatten(1))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def deep():
    torch.manual_seed(1)
    return Deep()


PIPELINES = {
    "by name": {
        "train_split_edges": edges(("stem", 0), ("blocks.2", 1)),
        "train_ckpt_nodes": ["blocks.1", "blocks.3"],
        "executionStrategy": "SameAsIpu",
        "availableMemoryProportion": [0.3, 0.3],
    },
    "sharded": {
        "train_split_edges": edges(("stem", 0), ("head", 1)),
        "executionStrategy": "ShardedExecution",
    },
    "pipelined evaluation": {
        "train_split_edges": edges(("stem", 0), ("blocks.2", 1)),
        "eval_cfg": {"executionStrategy": "SameAsIpu", "deviceIterations": 4},
    },
}


@pytest.mark.parametrize("options", PIPELINES.values(), ids=PIPELINES)
def test_a_split_changes_nothing_but_the_place(options):
    config = {"cumulative_iters": 4}
    runner, losses = make(ipu(**options), model=deep(), optimizer_config=config)
    data = loader(batch_size=2)
    runner.run([data], [("train", 1)])
    with runner.evaluating():
        (batch, *_) = runner.prepare_eval_loader(loader(8, 2))
        evaluated = runner.eval_step(batch)
    runner.close()
    reference, expected = make("cpu", model=deep(), optimizer_config=config)
    reference.run([data], [("train", 1)])
    with reference.evaluating():
        theirs = reference.eval_step(
            tuple(torch.cat(parts) for parts in zip_strict(*loader(8, 2)))
            if len(batch[0]) == 8
            else batch
        )
    assert losses.values == pytest.approx(expected.values, rel=1e-4)
    assert_same_state(runner.model, reference.model, **CLOSE)
    assert float(evaluated["loss"]) == pytest.approx(float(theirs["loss"]), rel=1e-4)


class OpenMMLabStyle(nn.Module):
    """As its models read: log values are numbers, taken from the losses."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, img, gt_label=None, img_metas=None, return_loss=True):
        output = self.net(img)
        if not return_loss:
            return output.softmax(1)
        loss = nn.functional.cross_entropy(output, gt_label)
        return {"loss_cls": loss, "loss_aux": 0.1 * output.square().mean()}

    def _parse_losses(self, losses):
        log_vars = OrderedDict()
        for name, value in losses.items():
            log_vars[name] = value.mean()
        loss = sum(value for name, value in log_vars.items() if "loss" in name)
        log_vars["loss"] = loss
        for name, value in log_vars.items():
            log_vars[name] = value.item()
        return loss, log_vars

    def train_step(self, data, optimizer=None):
        losses = self(**data)
        loss, log_vars = self._parse_losses(losses)
        return {"loss": loss, "log_vars": log_vars, "num_samples": len(data["img"])}

    val_step = train_step


class Named:
    """Images as dicts, each with facts about it that are no tensors."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(2, 4, 4, generator=generator)
        return {"img": image, "gt_label": index % 4, "img_metas": f"{index}.jpg"}


def with_facts(rows):
    batch = default_collate(rows)
    facts = [{"file": name, "id": int(name[:-4])} for name in batch["img_metas"]]
    return {**batch, "img_metas": facts}


def both(build, data, **options):
    """The losses on the CPU and on the IPU, and the runners."""
    found = []
    for device in ("cpu", ipu()):
        torch.manual_seed(2)
        runner, losses = train(device, data, model=build(), loss=False, **options)
        found.append((losses, runner))
    return found


def test_an_openmmlab_model_with_numbers_for_log_values(capsys):
    data = DataLoader(Named(), batch_size=4, collate_fn=with_facts)
    (expected, _), (losses, runner) = both(OpenMMLabStyle, data)
    assert losses == pytest.approx(expected, rel=1e-4)
    assert set(runner.outputs["log_vars"]) == {"loss", "loss_cls", "loss_aux"}
    values = {k: float(v) for k, v in runner.outputs["log_vars"].items()}
    total = values["loss_cls"] + values["loss_aux"]
    assert values["loss"] == pytest.approx(total, rel=1e-5)
    told = capsys.readouterr().err
    assert "batch['img_metas'][0]['id']" in told  # changes, and is no tensor
    assert "['file']" not in told  # a name, of which nothing is computed


Pair = namedtuple("Pair", "image label")


@dataclass
class Record:
    pair: Any
    weight: Any


class Structured(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def train_step(self, batch, optimizer):
        output = self.net(batch.pair.image)
        loss = nn.functional.cross_entropy(output, batch.pair.label)
        loss = loss * batch.weight.mean()
        return {"loss": loss, "log_vars": {}, "num_samples": len(output)}

    def val_step(self, batch, optimizer):
        found = self.train_step(batch, optimizer)
        output = self.net(batch.pair.image)
        boxes = Pair(output.amax(1), {"all": [output, batch.pair.label]})
        return {**found, "predictions": boxes, "note": "kept"}


def records(samples):
    images, labels = (torch.stack(column) for column in zip_strict(*samples))
    return Record(Pair(images, labels), torch.ones(len(samples)))


def test_the_users_structures_go_in_and_come_back():
    data = DataLoader(loader().dataset, batch_size=4, collate_fn=records)
    (expected, _), (losses, _) = both(Structured, data)
    assert losses == pytest.approx(expected, rel=1e-4)
    outputs = []
    for device in ("cpu", ipu()):
        runner, _ = make(device, model=Structured(), loss=False)
        runner.prepare()
        with runner.evaluating():
            outputs.append(runner.eval_step(next(iter(data)))["predictions"])
        runner.close()
    theirs, mine = outputs
    assert type(mine) is Pair
    assert mine.label["all"][1].dtype == torch.int64
    assert torch.equal(mine.label["all"][1], theirs.label["all"][1])
    assert isinstance(mine.image, Tensor)
