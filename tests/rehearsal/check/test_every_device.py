"""What `devrun check` finds on any device: gradients, imports, resume."""

from __future__ import annotations

SCALED = "if self.training:\n    self.scale.mul_(0.9)\nh = h * self.scale"


def test_a_buffer_that_no_checkpoint_has_is_found_and_its_remedy_leaves_nothing(
    rehearse,
):
    plain = "self.register_buffer('scale', torch.rand(8), persistent=False)"
    done = rehearse("cpu", parts={"init": plain, "forward": SCALED})
    assert done.brief() == [("differs", "resume", "self.scale")], done.notes
    mended = "self.register_buffer('scale', torch.rand(8))"
    again = rehearse("cpu", parts={"init": mended, "forward": SCALED})
    assert again.brief() == [] and again.notes["stage"] is None


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
