"""Training on the device gives the host's numbers."""

import copy

import habana_frameworks.torch.core as htcore
import torch
import torch.nn.functional as F
from habana_frameworks import emulator
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.support.near import assert_near
from tests.support.strict import zip_strict

MODES = ("lazy", "eager")

HPU = torch.device("hpu")
OPTIMIZERS = "SGD Adam AdamW RMSprop Adagrad Adadelta NAdam RAdam Adamax ASGD Rprop"


def first(value):
    return value[0] if isinstance(value, tuple) else value


def same_as_host(model, x, atol=1e-5):
    """Forward and gradients as on the host."""
    host = copy.deepcopy(model)
    model.to("hpu")
    ours, theirs = first(model(x.to("hpu"))), first(host(x))
    ours.sum().backward()
    theirs.sum().backward()
    torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), atol=atol, rtol=0)
    for mine, other in zip_strict(model.parameters(), host.parameters()):
        torch.testing.assert_close(mine.grad.cpu(), other.grad, atol=1e-4, rtol=0)


def test_a_convolutional_net():
    body = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)]
    same_as_host(nn.Sequential(*body, *head), torch.randn(2, 3, 8, 8))


def test_recurrent_nets():
    x = torch.randn(2, 3, 4)
    same_as_host(nn.LSTM(4, 5, 2, batch_first=True), x)
    same_as_host(nn.LSTM(4, 5, bidirectional=True, bias=False), x)
    same_as_host(nn.GRU(4, 5, 2, bidirectional=True), x)
    same_as_host(nn.GRUCell(4, 5, bias=False), x[0])


def test_a_transformer_layer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    same_as_host(layer, torch.randn(2, 3, 8))


def test_attention():
    q = torch.randn(1, 2, 4, 8)
    d = q.to("hpu")
    ours = F.scaled_dot_product_attention(d, d, d, is_causal=True)
    theirs = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    torch.testing.assert_close(ours.cpu(), theirs)


def test_every_optimizer_takes_the_hosts_steps():
    x = torch.randn(4, 3)
    for name in OPTIMIZERS.split():
        host = nn.Linear(3, 2)
        ours = copy.deepcopy(host).to("hpu")
        pairs = []
        for model, data in ((host, x), (ours, x.to("hpu"))):
            kind = getattr(torch.optim, name)
            pairs.append((model, kind(model.parameters(), lr=0.1), data))
        for _ in range(3):
            for model, optimizer, data in pairs:
                optimizer.zero_grad()
                model(data).pow(2).sum().backward()
                optimizer.step()
        assert_near({name: ours.weight}, {name: host.weight})
        state = copy.deepcopy(pairs[1][1].state_dict())
        pairs[1][1].load_state_dict(state)


def test_an_optimizer_built_before_the_move_still_trains():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.to("hpu")
    before = model.weight.detach().clone()
    model(torch.ones(1, 2, device=HPU)).sum().backward()
    optimizer.step()
    assert not torch.equal(model.weight.detach(), before)


def test_gradients_of_gradients_and_checkpointing():
    x = torch.ones(3, device=HPU, requires_grad=True)
    (grad,) = torch.autograd.grad((x * x).sum(), x, create_graph=True)
    grad.sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    for reentrant in (True, False):
        x.grad = None
        checkpoint(lambda a: a * 2, x, use_reentrant=reentrant).sum().backward()
        assert x.grad.tolist() == [2, 2, 2]


def test_autocast_follows_the_three_lists():
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8)).to("hpu")
    x = torch.randn(2, 4, device=HPU)
    with torch.autocast("hpu"):
        out = model(x)
        assert out.dtype is torch.bfloat16  # lower, by default bfloat16
        assert F.softmax(out, -1).dtype is torch.bfloat16  # unlike CUDA
        assert torch.exp(out).dtype is torch.float32  # in both: the float32 list wins
        assert (out + x[:, :1]).dtype is torch.float32  # promote
        loss = F.cross_entropy(out, torch.tensor([0, 1], device=HPU))
    assert loss.dtype is torch.float32
    loss.backward()
    assert model[0].weight.grad.dtype is torch.float32
    assert (x @ x.t()).dtype is torch.float32


def test_a_linear_layer_is_one_operator_each_way_with_the_hosts_numbers():
    for shape in ((5, 8), (2, 3, 8), (8,)):
        for bias in (True, False):
            host = nn.Linear(8, 4, bias=bias)
            ours = copy.deepcopy(host).to("hpu")
            x = torch.randn(shape, requires_grad=True)
            y = x.detach().to("hpu").requires_grad_()
            emulator.reset()
            ours(y).sum().backward()
            host(x).sum().backward()
            ops = emulator.report().ops
            assert ops["aten::linear"] == ops["aten::linear_backward"] == 1
            assert "aten::mm" not in ops and "aten::addmm" not in ops
            assert_near(y.grad, x.grad)
            mine, theirs = ([p.grad for p in m.parameters()] for m in (ours, host))
            assert_near(mine, theirs)


def test_a_later_update_counts_as_much_as_the_first():
    for name in ("SGD", "Adam", "AdamW"):
        model = nn.Linear(3, 2).to("hpu")
        kind = getattr(torch.optim, name)
        optimizer = kind(model.parameters(), lr=0.1, weight_decay=0.01)
        seen = []
        for _ in range(4):
            model(torch.ones(1, 3, device=HPU)).sum().backward()
            htcore.mark_step()
            emulator.reset()
            optimizer.step()
            htcore.mark_step()
            report = emulator.report()
            seen.append((report.ops, report.totals["launch"]))
        # The first makes the states, which the others find.
        assert seen[1] == seen[2] == seen[3], name
        assert not report.of("compilation")
