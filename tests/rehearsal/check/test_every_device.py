"""What `devrun check` finds on any device: data, hooks, gradients, imports, resume."""

from __future__ import annotations

import os

import pytest

SCALED = "if self.training:\n    self.scale.mul_(0.9)\nh = h * self.scale"
SLOW_ROW = "time.sleep(0.02)"
FAULTS = {
    "samples that take long": (
        {"getitem": SLOW_ROW},
        {},
        ("slow", "data", "Rows"),
        {},
        {},
    ),
    "a hook that takes long": (
        {"hook": "def after_train_iter(self, runner):\n    time.sleep(0.05)"},
        {"custom_hooks": [{"type": "Own"}]},
        ("slow", "hook", "Own"),
        {
            "hook": "def after_train_iter(self, runner):\n"
            "    if self.every_n_iters(runner, 100):\n"
            "        time.sleep(0.05)"
        },
        {"custom_hooks": [{"type": "Own"}]},
    ),
    "weights that every construction scales": (
        {
            "init": "self.register_buffer('scale', torch.rand(8), persistent=False)",
            "forward": SCALED,
        },
        {},
        ("differs", "resume", "update"),
        {
            "init": "self.register_buffer('scale', torch.rand(8))",
            "forward": SCALED,
        },
        {},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_its_remedy_leaves_nothing(rehearse, name):
    parts, config, what, mended, mended_config = FAULTS[name]
    done = rehearse("cpu", parts=parts, config=config)
    assert done.brief() == [what], done.notes
    (finding,) = done.findings
    assert finding["why"] and finding["remedy"]
    if name == "samples that take long":  # here the config is the remedy
        (workers,) = finding["fix"].values()
        assert finding["fix"] == {"data.workers_per_gpu": workers}
        assert 1 <= workers <= len(os.sched_getaffinity(0))
        assert finding["site"].startswith(f"{done.file}:")
        return
    again = rehearse("cpu", parts=mended, config=mended_config)
    assert again.brief() == [], again.notes
    assert again.notes["stage"] is None


def test_the_remedy_as_config_keys_is_one(rehearse):
    parts = {"init": "self.idle = nn.Linear(2, 2)"}
    (finding,) = rehearse("cpu", parts=parts).findings
    again = rehearse("cpu", parts=parts, config=finding["fix"])
    assert again.brief() == []


def test_several_things_that_break_are_all_found(rehearse):
    config = {
        "custom_imports": {"imports": ["no_such_module_here"]},
        "lr_config": {"policy": "nothing"},
        "evaluation": {"metric": "no_such_metric"},
        "custom_hooks": [{"type": "Nothing"}, {"type": "IterTimerHook", "no": 1}],
    }
    done = rehearse("cpu", config=config)
    whats = [what for _, _, what in done.brief()]
    assert whats[0] == "no_such_module_here"
    assert {what.split(".")[0] for what in whats[1:]} == {
        "lr_config", "evaluation", "custom_hooks",
    }  # fmt: skip
    assert len(whats) == 5
    assert done.notes["stage"] is None


def test_facts_of_the_data_and_the_saves_are_measured(rehearse):
    facts = rehearse("cpu").notes["facts"]
    assert facts["samples a second, one process"] > 100
    assert facts["bytes of a checkpoint"] > 1000


def test_the_slowest_transform_has_its_name(rehearse):
    done = rehearse(
        "cpu",
        parts={
            "module": "class Slow:\n"
            "    def __call__(self, row):\n"
            "        time.sleep(0.02)  # fault\n"
            "        return row",
            "dataset_init": "self.pipeline = [Slow(), nn.Identity()]",
            "getitem": "for each in self.pipeline:\n    row = each(row)",
        },
    )
    (finding,) = done.findings
    assert (finding["kind"], finding["what"]) == ("data", "Slow")
    assert finding["site"].rpartition(":")[0] == str(done.file)
    shares = done.notes["facts"]["slowest transforms, share of a sample"]
    assert next(iter(shares)) == "Slow" and shares["Slow"] > 0.8
