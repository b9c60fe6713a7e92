"""Generation on a Gaudi: the tokens of the host, in the SDK's graphs."""

from tests.hpu.runs import MODE, device
from tests.support.generation import LENGTHS, generated, gpt, prompts

MODES = ("lazy", "eager")


def counts():
    from habana_frameworks import emulator

    return dict(emulator.report().totals)


def test_tokens_are_the_hosts_and_graphs_are_one_a_bucket_and_one():
    how = {"temperature": 2.0, "top_k": 30}
    before = counts()
    on_device = generated(gpt(), device(), rows=1, **how)
    first = counts()
    assert on_device == generated(gpt(), "cpu", **how)
    if MODE["mode"] != "lazy":
        return
    captured = first["flush by capture"] - before.get("flush by capture", 0)
    assert captured == 2 * 3  # before and after each
    generated(gpt(), device(), rows=1, **how)  # now all of the start is compiled
    second = counts()
    more = generated(gpt(), device(), prompts() * 2, rows=1, **how)
    third = counts()
    assert more[: len(LENGTHS)] == on_device
    assert third["flush by capture"] - second["flush by capture"] == captured
    assert third["graph_replay"] - second["graph_replay"] == 2 * 8 * len(LENGTHS)
    assert third["compilation"] == second["compilation"]
