"""Lazy mode: graphs, what flushes them, what makes them new, and how it is reported."""

import contextlib
import io
import tempfile
import warnings
from pathlib import Path

import habana_frameworks.torch as ht
import habana_frameworks.torch.core as htcore
import torch
from habana_frameworks import emulator
from habana_frameworks.torch.utils.event_dispatcher import EventDispatcher, EventId
from habana_frameworks.torch.utils.experimental import (
    const_shape_dataloader,
    data_dynamicity,
    detect_recompilation_auto_model,
)
from pytest import raises
from torch import nn

MODES = ("lazy",)

HPU = torch.device("hpu")


def compilations(work):
    """How many graphs `work()` compiles; what was open is closed before."""
    htcore.mark_step()
    with ht.hpu.metric_localcontext("graph_compilation") as metric:
        work()
        htcore.mark_step()
    return dict(metric.stats())["TotalNumber"]


def line_of(kind, number=0):
    """The source line that a finding points at."""
    site = emulator.report().of(kind)[number].site
    with open(site.file, encoding="utf-8") as source:
        return source.readlines()[site.line - 1]


def test_a_step_marker_closes_one_graph():
    x = torch.ones(11, device=HPU)
    assert compilations(lambda: (x * 2).relu()) == 1
    assert compilations(lambda: (x * 2).relu()) == 0
    assert emulator.report().totals["cache_hit"] == 1


def test_a_new_shape_compiles_and_names_the_line_it_came_from():
    def step(size):
        batch = torch.ones(size).to("hpu")  # the shape comes from here
        return (batch * 3).exp()

    assert compilations(lambda: step(5)) == 1
    emulator.reset()
    assert compilations(lambda: step(6)) == 1
    (finding,) = emulator.report().of("compilation")
    assert finding.what == "shape of input 0: (5,) -> (6,)"
    assert "the shape comes from here" in line_of("compilation")


def test_training_compiles_once_shapes_stand_still():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("hpu")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(size):
        optimizer.zero_grad()
        model(torch.ones(size, 4).to("hpu")).pow(2).mean().backward()
        htcore.mark_step()
        optimizer.step()

    for _ in range(3):
        compilations(lambda: step(3))
    assert compilations(lambda: step(3)) == 0
    assert compilations(lambda: step(5)) == 1  # forward and backward, not the update


def test_numbers_that_travel_as_tensors_do_not_recompile():
    x = torch.ones(13, device=HPU)
    assert compilations(lambda: x.mul(2.0).add(x, alpha=0.1)) == 1
    assert compilations(lambda: x.mul(3.0).add(x, alpha=0.2)) == 0


def test_other_python_numbers_recompile():
    x = torch.ones(14, device=HPU)
    assert compilations(lambda: x.clamp(0, 1)) == 1
    emulator.reset()
    assert compilations(lambda: x.clamp(0, 2)) == 1
    assert emulator.report().of("compilation")[0].what.startswith("a Python value")


def test_the_results_that_are_alive_are_part_of_the_graph():
    x = torch.ones(15, device=HPU)

    def keep():
        kept.append(x.exp())

    kept = []
    assert compilations(lambda: x.exp()) == 1
    assert compilations(keep) == 1


def test_item_always_waits_for_the_device():
    x = torch.ones(3, device=HPU).sum()
    htcore.mark_step()
    assert x.item() == 3  # this line waits
    (finding,) = emulator.report().of("host_sync")
    assert finding.what == "item" and "this line waits" in line_of("host_sync")
    bool(x), float(x), x.tolist(), repr(x)
    assert emulator.report().totals["host_sync"] == 5


def test_a_copy_to_the_host_waits_and_ends_a_graph_with_work_for_it():
    x = torch.ones(3).to("hpu")
    htcore.mark_step()
    before = emulator.report().totals.get("flush", 0)
    x.cpu()  # this line waits
    (finding,) = emulator.report().of("host_sync")
    assert finding.what == "copy to host" and "this line waits" in line_of("host_sync")
    assert emulator.report().totals.get("flush", 0) == before
    y = x + 1
    view = y[1:]
    view.cpu()
    y.cpu()
    assert emulator.report().totals["flush"] == before + 1
    assert emulator.report().totals["host_sync"] == 3


def test_float64_is_told_where_it_begins():
    x = torch.ones(3).to("hpu")
    found = lambda: [(f.what, f.count) for f in emulator.report().of("float64")]  # noqa: E731
    wide = x.double()
    (wide * 2 + wide).sum()  # no line of its own
    assert found() == [("aten::_to_copy", 1)]
    emulator.reset()
    torch.ones(3, dtype=torch.float64).to("hpu")
    assert found() == [("copy to the device", 1)]
    emulator.reset()
    torch.ones(3, dtype=torch.float64).to("hpu", torch.float32)
    x.sum(dtype=torch.float32), x.cpu().double()
    assert found() == []


def test_a_structured_operator_is_served_by_its_out_form():
    x = torch.rand(3, device=HPU).abs() + 1
    rows = torch.tensor([0, 2], device=HPU)
    torch.zeros(3, device=HPU).index_add(0, rows, x[:2])
    torch.zeros(3, device=HPU).index_add_(0, rows, x[:2])
    x.lgamma(), nn.functional.silu(x.requires_grad_()).sum().backward()
    assert emulator.report().of("cpu_fallback") == []
    torch.special.i1(x), torch.digamma(x)  # structured too, and in no form on the list
    found = {f.what for f in emulator.report().of("cpu_fallback")}
    assert {"aten::special_i1", "aten::digamma"} <= found


def test_tensors_of_the_host_never_count():
    x = torch.ones(3)
    x.sum().item(), x[x > 0], x.nonzero(), repr(x)
    assert emulator.report().findings == ()


def test_synchronize_and_events_flush():
    x = torch.ones(3, device=HPU) + 1
    torch.hpu.synchronize()
    y = x + 1
    torch.hpu.Event().record()
    assert emulator.report().totals["flush"] == 2 and y.tolist() == [3, 3, 3]


def test_operators_whose_result_depends_on_values_are_found():
    x = torch.arange(6.0, device=HPU)
    x[x > 2]
    x[x > 2] = 0.0
    x.nonzero()
    x.masked_select(x > 1)
    torch.unique(x)
    found = [f.what.split(".")[0] for f in emulator.report().of("dynamic_op")]
    wanted = {"index", "index_put_", "nonzero", "masked_select", "_unique2"}
    assert set(found) == {f"aten::{name}" for name in wanted}
    x[torch.tensor([0, 2], device=HPU)]
    assert emulator.report().totals["dynamic_op"] == 5


def test_after_such_an_operator_graphs_are_cut_small_until_the_next_marker():
    x = torch.ones(4, device=HPU)
    x.nonzero()
    emulator.reset()
    for _ in range(35):
        x = x + 1
    assert emulator.report().totals["flush by stage submission"] == 2  # 10, then 20
    htcore.mark_step()
    emulator.reset()
    for _ in range(35):
        x = x + 1
    assert "flush" not in emulator.report().totals


def test_an_operator_without_a_kernel_falls_back():
    x = torch.rand(4, 4, device=HPU)
    with ht.hpu.metric_localcontext("cpu_fallback") as metric:
        torch.linalg.svdvals(x)  # not on the list
    stats = dict(metric.stats())
    assert stats == {"TotalNumber": 1, "FallbackOps": {"aten::_linalg_svd": 1}}
    (finding,) = emulator.report().of("cpu_fallback")
    assert finding.nbytes == 64 and "not on the list" in line_of("cpu_fallback")
    assert ht.utils.debug._get_fallback_op_count() == {"aten::_linalg_svd": 1}


def test_ordinary_training_has_no_fallback():
    body = [
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.GELU(),
        nn.Dropout(),
        nn.Flatten(),
    ]
    model = nn.Sequential(*body, nn.Linear(8, 4), nn.LayerNorm(4)).to("hpu")
    optimizer = torch.optim.AdamW(model.parameters())
    loss = nn.functional.cross_entropy(
        model(torch.rand(3, 1, 4, 4, device=HPU)), torch.arange(3, device=HPU)
    )
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    report = emulator.report()
    assert [f.what for f in report.of("cpu_fallback")] == []
    assert report.of("dynamic_op") == []


def test_closures_run_once_after_the_marker():
    seen = []
    htcore.add_step_closure(seen.append, (1,))
    htcore.add_step_closure(seen.append, (2,))
    assert seen == []
    assert htcore.mark_step() is None
    htcore.iter_mark_step()
    assert seen == [1, 2]


def test_64_bit_numbers_must_fit_32():
    with raises(RuntimeError, match="Error when trying to cast"):
        torch.tensor([2**40]).to("hpu")
    with raises(RuntimeError, match="Error when trying to cast"):
        torch.tensor([1e300], dtype=torch.float64).to("hpu")
    fine = torch.tensor([float("inf"), float("nan")], dtype=torch.float64).to("hpu")
    assert fine.dtype is torch.float64
    assert torch.tensor([7]).to("hpu").dtype is torch.int64


def test_events_can_be_listened_to():
    heard = []
    bus = EventDispatcher.instance()
    handle = bus.subscribe(EventId.MARK_STEP, lambda at, params: heard.append(at))
    htcore.mark_step()
    bus.unsubscribe(handle)
    htcore.mark_step()
    assert len(heard) == 1 and heard[0] > 0


def test_a_metric_counts_between_start_and_stop():
    metric = ht.hpu.metric_global("graph_compilation")
    metric.reset()
    metric.stop()
    compilations(lambda: torch.ones(21, device=HPU).exp().tanh())
    assert dict(metric.stats())["TotalNumber"] == 0
    metric.start()
    compilations(lambda: torch.ones(22, device=HPU).exp().tanh())
    assert dict(metric.stats())["TotalNumber"] == 1
    tags = [tag for tag, _ in metric.stats()]
    assert tags == ["TotalNumber", "TotalTime", "AvgTime"]


def test_compiling_excludes_lazy_mode():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(lambda x: x + 1, backend="hpu_backend")
        with raises(Exception, match="PT_HPU_LAZY_MODE=0"):
            compiled(torch.ones(2, device=HPU))


class Uneven(nn.Module):
    """Of two layers the second one sees as many rows as are above 0."""

    def __init__(self):
        super().__init__()
        self.whole, self.part = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        rows = self.whole(x)
        return self.part(rows[x[:, 0] > 0])


def test_recompilations_are_told_by_submodule():
    with tempfile.TemporaryDirectory() as folder:
        net = Uneven().to("hpu")
        net = detect_recompilation_auto_model(net, csv_out=f"{folder}/out")
        positive, fewer = torch.ones(4, 2), torch.ones(4, 2)
        fewer[0] = -1
        for x in (positive, positive, fewer):
            net(x.to("hpu"))
        last = {line.split("]")[0][1:]: line for line in net.raw_logs()[-3:]}
        assert "new input and output signature, recompilation" in last["Net/part"]
        assert "0 graphs" in last["Net/whole"]
        assert "new output signature" in last["Net"]
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            net.analyse_dynamicity()
        assert "x  Net/part" in said.getvalue()
        assert "Net/part" in Path(folder, "out_2.csv").read_text("utf-8")


def test_shapes_of_batches_are_counted():
    batches = [torch.ones(n, 2) for n in (3, 4, 4, 3, 4)]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert data_dynamicity(batches) == {(3, 2): 2, (4, 2): 3}
    assert "unique shapes:  2" in said.getvalue()
    same = [len(batch) for batch in const_shape_dataloader(batches, 2)]
    assert same == [4, 4]
