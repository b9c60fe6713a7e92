"""`devrun check`, Gaudi: each planted fault is found, and its remedy leaves nothing."""

from __future__ import annotations

import pytest

from tests.rehearsal.check.conftest import CONFIG

FAULTS = {
    "host fallback": (
        "lazy",
        {"forward": "h = h + torch.linalg.svdvals(h).sum() * 0  # fault"},
        ("slow", "on the host"),
        {"forward": "h = h + (h * h).sum().sqrt() * 0"},
    ),
    "item in forward": (
        "lazy",
        {"forward": "h = h * (1 if h.mean().item() < 1e9 else 2)  # fault"},
        ("slow", "host waits"),
        {"forward": "h = torch.where(h.mean() < 1e9, h, 2 * h)"},
    ),
    "a branch on values": (
        "lazy",
        {"forward": "if h.sum() > 1e9:  # fault\n    h = 2 * h"},
        ("slow", "host waits"),
        {"forward": "h = torch.where(h.sum() > 1e9, 2 * h, h)"},
    ),
    "a print of values": (
        "eager",
        {"forward": "print('mean', h.mean().tolist())  # fault"},
        ("slow", "host waits"),
        {},
    ),
    "a boolean index": (
        "eager",
        {"forward": "h = h + h[h > 0].sum() * 0  # fault"},
        ("slow", "host waits"),
        {"forward": "h = h + (h * (h > 0)).sum() * 0"},
    ),
    "nonzero": (
        "lazy",
        {"forward": "h = h + torch.nonzero(h).sum() * 0  # fault"},
        ("slow", "host waits"),
        {"forward": "h = h + (h != 0).sum() * 0"},
    ),
    "a hook that reads the loss": (
        "lazy",
        {
            "hook": "def after_train_iter(self, runner):\n"
            "    self.last = runner.outputs['loss'].item()  # fault"
        },
        ("slow", "host waits"),
        {
            "hook": "def after_train_iter(self, runner):\n"
            "    self.last = runner.outputs['loss'].detach()"
        },
    ),
    "float64": (
        "lazy",
        {"forward": "h = h.double().float()  # fault"},
        ("differs", "float64"),
        {"forward": "h = h.float()"},
    ),
    "a tensor of the host": (
        "eager",
        {"forward": "h = h + torch.ones(8)  # fault"},
        ("breaks", "two devices"),
        {"forward": "h = h + torch.ones(8, device=h.device)"},
    ),
    "a tensor in an attribute": (
        "lazy",
        {
            "init": "self.scale = torch.ones(8)",
            "forward": "h = h * self.scale  # fault",
        },
        ("breaks", "two devices"),
        {
            "init": "self.register_buffer('scale', torch.ones(8))",
            "forward": "h = h * self.scale",
        },
    ),
    "numpy in forward": (
        "eager",
        {"forward": "h = h + float(h.detach().numpy().sum()) * 0  # fault"},
        ("breaks", "refused"),
        {"forward": "h = h + h.detach().sum() * 0"},
    ),
    "another shape each time": (
        "lazy",
        {
            "init": "self.n = 0",
            "forward": "self.n += 1\n"
            "h = h + torch.ones(self.n, device=h.device).sum() * 0  # fault",
        },
        ("slow", "compiled again"),
        {"forward": "h = h + torch.ones(8, device=h.device).sum() * 0"},
    ),
    "a graph break": (
        "compile",
        {"forward": "print('forward')  # fault"},
        ("slow", "graph break"),
        {},
    ),
    "a draw that a graph keeps": (
        "lazy",
        {"forward": "h = h * (0.9 + 0.1 * np.random.rand())  # fault"},
        ("differs", "frozen"),
        {"forward": "h = h * (0.9 + 0.1 * torch.rand((), device=h.device))"},
    ),
}
FOLLOWS = {"nonzero": {"compiled again"}, "a draw that a graph keeps": {"resume"}}
"""What a fault brings with it: other shapes, another number in a resumed run."""


def config_of(name, parts):
    changes = {"custom_hooks": [{"type": "Own"}]} if "hook" in parts else {}
    if "graph keeps" in name:
        changes["device"] = {"type": "hpu", "emulate": True, "graphs": True}
    return changes


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_where_it_is(rehearse, name):
    mode, parts, (severity, kind), mended = FAULTS[name]
    done = rehearse("hpu", mode, parts, config_of(name, parts))
    found = [f for f in done.findings if (f["severity"], f["kind"]) == (severity, kind)]
    assert found, done.notes
    others = {f["kind"] for f in done.findings if f not in found}
    assert others <= FOLLOWS.get(name, set()), done.brief()
    if any("# fault" in text for text in parts.values()):
        assert found[0]["site"] == done.line("fault")
    assert found[0]["remedy"]
    again = rehearse("hpu", mode, mended, config_of(name, mended))
    assert again.findings == [], again.brief()
    assert again.notes["stage"] is None


def test_how_often_a_line_waits_is_said_for_an_update(rehearse):
    twice = "h = h * (1 if h.mean().item() + h.sum().item() < 1e9 else 2)  # fault"
    done = rehearse("hpu", "lazy", {"forward": twice})
    (finding,) = done.findings
    assert finding["per_step"] == 2.0


def test_all_faults_are_found_in_one_rehearsal(rehearse):
    parts = {
        "init": "self.scale = torch.ones(8)",
        "forward": "h = h * self.scale\n"
        "h = h + float(h.detach().numpy().sum()) * 0\n"
        "h = h + torch.linalg.svdvals(h).sum() * 0\n"
        "h = h.double().float()",
    }
    done = rehearse("hpu", "lazy", parts)
    kinds = {finding["kind"] for finding in done.findings}
    assert kinds == {"two devices", "refused", "on the host", "float64"}
    assert done.notes["stage"] is None


def test_memory_is_what_the_user_says(rehearse):
    parts = {
        "init": "self.big = nn.Linear(8, 1 << 16)",
        "forward": "h = h + self.big(h).sum() * 0",
    }
    assert rehearse("hpu", "lazy", parts, memory=str(1 << 26)).findings == []
    done = rehearse("hpu", "lazy", parts, memory=str(1 << 20))
    (finding,) = done.findings
    assert (finding["severity"], finding["kind"]) == ("breaks", "memory")


def test_batches_of_many_lengths_get_buckets(rehearse):
    parts = {
        "getitem": "row = row.repeat(1 + index % 20, 1)",
        "forward": "h = h.mean(1) if h.dim() == 3 else h",
    }
    data = {**CONFIG["data"], "samples_per_gpu": 1}
    done = rehearse("hpu", "lazy", parts, {"data": data})
    (finding,) = done.findings
    assert (finding["severity"], finding["kind"]) == ("slow", "changing shapes")
    assert finding["why"].startswith("20 shapes in 64 batches, as batch[0] (1, ")
    assert finding["site"].startswith(f"{done.file}:")
    (fix,) = finding["fix"].values()
    assert fix == {"pad": {"0": 0}, "num": 8}
    again = rehearse("hpu", "lazy", parts, {"data": {**data, "buckets": fix}})
    assert again.findings == [] and again.notes["stage"] is None
