"""HPU graphs: recording, replaying, and what they refuse."""

import copy

import habana_frameworks.torch as ht
import torch
from habana_frameworks import emulator
from pytest import raises
from torch import nn

MODES = ("lazy",)

HPU = torch.device("hpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)]
        self.body = nn.Sequential(*layers)

    def forward(self, x, scale=1.0):
        return {"out": self.body(x) * scale}


def record(work):
    graph = ht.hpu.HPUGraph()
    with ht.hpu.graph(graph):
        work()
    return graph


def test_a_replay_works_on_what_its_inputs_hold():
    x, made = torch.ones(3, device=HPU), []
    graph = record(lambda: made.append((x * 2).relu()))
    x.copy_(torch.tensor([1.0, -2.0, 3.0]))
    emulator.reset()
    graph.replay()
    assert emulator.report().totals["launch"] == 1
    assert made[0].tolist() == [2, 0, 6]


def test_what_a_recording_cannot_hold_is_refused():
    x = torch.ones(3, device=HPU)
    refused = {
        "item is not supported": lambda: (x.sum() > 0).item(),
        "print is not supported": lambda: repr(x),
        "dynamic shapes": lambda: x[x > 0],
        "cpu fallback is not supported": lambda: torch.fft.fft(x),
    }
    for message, work in refused.items():
        with raises(RuntimeError, match=f"{message}.*hpu graph capturing"):
            record(work)
    assert not ht.hpu.is_current_stream_capturing()


def test_one_capture_at_a_time():
    def nested():
        assert ht.hpu.is_current_stream_capturing()
        ht.hpu.HPUGraph().capture_begin()

    with raises(RuntimeError, match="one hpu graph capture at a time"):
        record(nested)


def test_an_empty_graph_cannot_be_replayed():
    with raises(RuntimeError, match="holds no capture"):
        ht.hpu.HPUGraph().replay()


def test_graphed_callables_train_as_before():
    layer = nn.Linear(3, 3).to("hpu")
    host = copy.deepcopy(layer).cpu()
    sample = torch.randn(2, 3, device=HPU, requires_grad=True)
    graphed = ht.hpu.make_graphed_callables(layer, (sample,))
    for _ in range(2):
        x = torch.randn(2, 3)
        graphed(x.to("hpu")).sum().backward()
        host(x).sum().backward()
    torch.testing.assert_close(layer.weight.grad.cpu(), host.weight.grad)
    with raises(RuntimeError, match=r"shape \(3, 3\), recorded was \(2, 3\)"):
        graphed(torch.randn(3, 3, device=HPU))


def test_graphed_callables_take_plain_modules_and_tensors():
    layer = nn.Linear(2, 2).to("hpu")
    with raises(AssertionError, match="tuple of tensors"):
        ht.hpu.make_graphed_callables(layer, (3,))
    layer.register_forward_hook(lambda *args: None)
    with raises(AssertionError, match="hooks"):
        ht.hpu.make_graphed_callables(layer, (torch.ones(1, 2, device=HPU),))


def test_random_numbers_differ_from_replay_to_replay():
    drop = nn.Dropout()
    x = torch.ones(50, device=HPU)
    graphed = ht.hpu.make_graphed_callables(drop, (x,))
    first, second = graphed(x).clone(), graphed(x).clone()
    assert not torch.equal(first, second)


def test_module_cacher_trains_as_the_host_does():
    ours, host = Net(), None
    host = copy.deepcopy(ours)
    ours = ht.hpu.ModuleCacher(max_graphs=2)(ours.to("hpu"))
    mine = torch.optim.SGD(ours.parameters(), 0.1, momentum=0.9)
    other = torch.optim.SGD(host.parameters(), 0.1, momentum=0.9)
    for number in range(6):
        x = torch.randn(4 if number % 2 else 6, 4)
        for model, optimizer, data in ((ours, mine, x.to("hpu")), (host, other, x)):
            optimizer.zero_grad(set_to_none=number % 3 == 0)
            model(data)["out"].pow(2).mean().backward()
            optimizer.step()
    for name, value in host.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name].cpu(), value)
    assert emulator.report().totals["graph_replay"] == 12


def test_module_cacher_counts_what_it_has_no_room_for():
    model = ht.hpu.ModuleCacher(max_graphs=1)(Net().to("hpu"))
    for size in (2, 3, 3):
        model(torch.ones(size, 4, device=HPU))
    (finding,) = emulator.report().of("graph_skipped")
    assert finding.count == 2 and "max_graphs" in finding.what


def test_module_cacher_refuses_star_arguments():
    class Star(nn.Module):
        def forward(self, *args):
            return args[0]

    with raises(AssertionError, match="neither \\*args"):
        ht.hpu.ModuleCacher()(Star())


def test_wrapped_inference_reuses_its_outputs():
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout()).to("hpu").eval()
    host = copy.deepcopy(model)
    wrapped = ht.hpu.wrap_in_hpu_graph(model)
    for size in (2, 5, 2):
        x = torch.randn(size, 3, device=HPU)
        expected = host(x).detach().cpu()
        torch.testing.assert_close(wrapped(x).cpu(), expected)
        torch.testing.assert_close(wrapped(x, bypass_hpu_graphs=True).cpu(), expected)
    x = torch.ones(2, 3, device=HPU)
    assert wrapped(x).data_ptr() == wrapped(x * 2).data_ptr()
    wrapped.clear_cache()
