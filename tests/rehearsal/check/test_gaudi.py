"""`devrun check`, Gaudi: each planted fault is found, and its remedy leaves nothing."""

from __future__ import annotations

import pytest

from tests.rehearsal.check.conftest import CONFIG


@pytest.mark.parametrize(
    ("mode", "forward", "kind", "config"),
    [
        ("compile", "print('forward')  # fault", "graph break", {}),
        (
            "lazy",
            "h = h * (0.9 + 0.1 * np.random.rand())  # fault",
            "frozen",
            {"device": {"type": "hpu", "emulate": True, "graphs": True}},
        ),
    ],
)
def test_what_a_graph_cannot_keep_is_found_where_it_is(
    rehearse, mode, forward, kind, config
):
    """The other faults are those of the corpus, whose device is lazy and plain."""
    done = rehearse("hpu", mode, {"forward": forward}, config)
    (found,) = [one for one in done.findings if one["kind"] != "resume"]
    assert (found["kind"], found["site"]) == (kind, done.line("fault"))


def test_how_often_a_line_waits_is_said_for_an_update(rehearse):
    twice = "h = h * (1 if h.mean().item() + h.sum().item() < 1e9 else 2)  # fault"
    done = rehearse("hpu", "lazy", {"forward": twice})
    (finding,) = done.findings
    assert finding["per_step"] == 2.0


def test_memory_is_what_the_user_says(rehearse):
    parts = {
        "init": "self.big = nn.Linear(8, 1 << 16)",
        "forward": "h = h + self.big(h).sum() * 0",
    }
    assert rehearse("hpu", "lazy", parts, memory=str(1 << 26)).findings == []
    done = rehearse("hpu", "lazy", parts, memory=str(1 << 20))
    (finding,) = done.findings
    assert (finding["severity"], finding["kind"]) == ("breaks", "memory")


def test_memory_is_that_of_the_whole_batch(rehearse):
    wide = {"forward": "h = h + h.repeat(1, 1 << 14).tanh().sum() * 0"}
    data = {**CONFIG["data"], "samples_per_gpu": 64}  # of which eight are tried
    done = rehearse("hpu", "lazy", wide, {"data": data}, memory=str(20 << 20))
    (finding,) = done.findings
    assert (finding["kind"], finding["what"]) == ("memory", "data.samples_per_gpu: 64")


def test_batches_of_many_lengths_get_buckets(rehearse):
    parts = {
        "getitem": "row = row.repeat(1 + index % 20, 1)",
        "forward": "h = h.mean(1) if h.dim() == 3 else h",
    }
    data = {**CONFIG["data"], "samples_per_gpu": 1}
    done = rehearse("hpu", "lazy", parts, {"data": data})
    (finding,) = done.findings
    assert (finding["severity"], finding["kind"]) == ("slow", "changing shapes")
    assert finding["why"].startswith("6 shapes in 6 updates, as batch[0] (1, ")
    assert finding["site"].startswith(f"{done.file}:")
    (fix,) = finding["fix"].values()
    assert fix == {"pad": {"0": 0}, "num": 8}
    again = rehearse("hpu", "lazy", parts, {"data": {**data, "buckets": fix}})
    assert again.findings == [] and again.notes["stage"] is None
