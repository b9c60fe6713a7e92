"""The device: tensors, transfers, random streams, memory, storage in files."""

import copy
import gc
import io
import pickle

import habana_frameworks.torch as ht
import torch
from pytest import raises
from torch import nn

MODES = ("lazy", "eager")

HPU = torch.device("hpu")


def test_a_tensor_says_where_it_is():
    x = torch.ones(2).to("hpu")
    assert x.device == torch.device("hpu:0") and x.device.type == "hpu"
    assert x.is_hpu and torch.zeros(1).hpu().is_hpu and not x.is_cpu
    assert torch.hpu is ht.hpu


def test_factories_make_tensors_on_the_device():
    made = [
        torch.zeros(3, device=HPU),
        torch.arange(5, device=HPU),
        torch.randperm(5, device=HPU),
        torch.tril_indices(3, 3, device=HPU),
        torch.tensor([1, 2], device=HPU),
        torch.eye(2, device=HPU),
        torch.hpu.FloatTensor([1.0, 2.0]),
    ]
    assert all(t.device.type == "hpu" for t in made)
    assert made[1].tolist() == [0, 1, 2, 3, 4]
    with torch.device("hpu"):
        assert nn.Linear(2, 2).weight.is_hpu


def test_mixing_devices_raises_but_host_scalars_may_mix():
    x = torch.ones(2, device=HPU)
    for mixed in (lambda: x + torch.ones(2), lambda: torch.ones(2)[x.long()]):
        with raises(RuntimeError, match="same device.*hpu:0 and cpu.*(add|index)"):
            mixed()
    assert (x[torch.tensor([1, 0])] + torch.tensor(1.0)).tolist() == [2, 2]


def test_views_share_memory_with_their_base():
    x = torch.zeros(3, 4, device=HPU)
    x[1] = 5
    x.t()[0, 0] = 9
    x[:, 2].add_(1)
    assert x.tolist() == [[9, 0, 1, 0], [5, 5, 6, 5], [0, 0, 1, 0]]
    assert torch.ones(2, device=HPU).view(torch.int32).dtype is torch.int32


def test_operators_that_change_a_layout_in_place_keep_the_tensor_right():
    x = torch.zeros(3, 4, device=HPU)
    assert x.unsqueeze_(0).shape == (1, 3, 4)
    assert x.squeeze_(0).t_().shape == (4, 3) and x.shape == (4, 3)
    out = torch.empty(0, device=HPU)
    torch.add(x, 1, out=out)
    assert out.shape == (4, 3) and out.sum().item() == 12


def test_a_numpy_array_needs_the_host_first():
    with raises(TypeError, match=r"Use Tensor.cpu\(\)"):
        torch.ones(2, device=HPU).numpy()
    assert torch.ones(2, device=HPU).cpu().numpy().sum() == 2


def test_printing_shows_values_and_device():
    text = repr(torch.tensor([1.5], device=HPU))
    assert text == "tensor([1.5000], device='hpu:0')"
    assert f"{torch.tensor(1.25, device=HPU):.1f}" == "1.2"


def test_a_parameter_can_be_made_from_the_class_of_another():
    kind = type(nn.Linear(2, 2).to("hpu").weight)
    for place in ("hpu", "cpu", "meta"):  # offloading moves parameters this way
        made = kind(torch.ones(2, device=place), requires_grad=False)
        assert made.device.type == place and not made.requires_grad
        assert isinstance(made, nn.Parameter)
    assert isinstance(nn.Parameter(torch.ones(2, device=HPU)), nn.Parameter)


def test_data_can_be_set_across_devices():
    layer = nn.Linear(2, 2)
    weight = layer.weight
    layer.weight.data = layer.weight.data.to("hpu")
    assert weight.is_hpu and isinstance(weight, nn.Parameter)
    weight.data = torch.zeros(2, 2)
    assert weight.device.type == "cpu"
    x = torch.zeros(2, device=HPU)
    x.data = torch.ones(3, device=HPU)
    assert x.sum().item() == 3


def test_deepcopy_and_pickle_keep_parameters():
    layer = nn.Linear(2, 2).to("hpu")
    twin = copy.deepcopy(layer)
    assert twin.weight.is_hpu and isinstance(twin.weight, nn.Parameter)
    twin.weight.data.zero_()
    assert layer.weight.abs().sum().item() > 0
    loaded = pickle.loads(pickle.dumps(layer))
    assert torch.equal(loaded.weight.cpu(), layer.weight.detach().cpu())


def test_a_saved_file_does_not_depend_on_the_device():
    layer = nn.Linear(2, 2).to("hpu")
    file = io.BytesIO()
    torch.save({"model": layer.state_dict(), "step": 3}, file)
    for place, kind in (("cpu", "cpu"), ("hpu", "hpu"), (None, "cpu"), (HPU, "hpu")):
        file.seek(0)
        loaded = torch.load(file, map_location=place, weights_only=True)
        assert loaded["step"] == 3
        assert {t.device.type for t in loaded["model"].values()} == {kind}
    layer.load_state_dict(loaded["model"])


def test_modules_keep_their_parameters_when_they_move():
    layer = nn.Linear(2, 2)
    before = [id(p) for p in layer.parameters()]
    layer.to("hpu")
    assert [id(p) for p in layer.parameters()] == before and layer.weight.is_hpu
    layer.cpu()
    assert [id(p) for p in layer.parameters()] == before
    assert layer.weight.device.type == "cpu"


def test_the_random_stream_is_seeded_with_the_hosts_and_separate():
    torch.manual_seed(3)
    assert torch.equal(torch.hpu.get_rng_state(), torch.get_rng_state())
    drawn = torch.randn(4, device=HPU)
    assert torch.equal(drawn.cpu(), torch.randn(4))
    host = torch.get_rng_state()
    torch.hpu.manual_seed(7)
    nn.functional.dropout(torch.ones(9, device=HPU))
    assert torch.equal(host, torch.get_rng_state())
    assert torch.hpu.initial_seed() == 7


def test_the_random_state_comes_back():
    state = torch.hpu.get_rng_state_all()
    first = torch.rand(3, device=HPU)
    torch.hpu.set_rng_state_all(state)
    assert torch.equal(first, torch.rand(3, device=HPU))
    with raises(RuntimeError, match="one state"):
        torch.hpu.set_rng_state_all(state * 2)
    with raises(RuntimeError, match="index 0"):
        torch.hpu.get_rng_state("hpu:1")


def test_a_generator_of_the_host_is_refused():
    with raises(RuntimeError, match="Expected a 'hpu' device type for generator"):
        torch.ones(2, device=HPU).normal_(generator=torch.Generator())


def test_memory_is_counted_from_real_sizes():
    torch.hpu.reset_peak_memory_stats()
    before = torch.hpu.memory_allocated()
    x = torch.zeros(1000, device=HPU)
    y = x[10:]
    assert torch.hpu.memory_allocated() - before == 4096
    del x
    assert torch.hpu.memory_allocated() - before == 4096
    del y
    assert torch.hpu.memory_allocated() == before
    assert torch.hpu.max_memory_allocated() >= before + 4096
    assert list(torch.hpu.memory_stats())[:3] == ["Limit", "InUse", "MaxInUse"]
    assert sum(torch.hpu.mem_get_info()) == 2 * (96 << 30) - before
    with raises(AssertionError, match="Invalid device id"):
        torch.hpu.memory_stats(3)


def test_there_is_one_device():
    assert torch.hpu.is_available() and torch.hpu.device_count() == 1
    assert torch.hpu.get_device_name() == "GAUDI2"
    assert torch.hpu.current_device() == 0 and torch.hpu.is_initialized()
    with raises(AssertionError):
        torch.hpu.set_device(1)
    kinds = ht.utils.experimental.synDeviceType
    assert ht.utils.experimental._get_device_type() == kinds.synDeviceGaudi2


def test_events_need_timing_to_be_measured():
    start, end = (torch.hpu.Event(enable_timing=True) for _ in range(2))
    start.record()
    end.record(torch.hpu.current_stream())
    assert start.elapsed_time(end) >= 0 and end.query()
    with raises(RuntimeError, match="enable_timing"):
        start.elapsed_time(torch.hpu.Event())
    side = torch.hpu.Stream()
    with torch.hpu.stream(side):
        assert torch.hpu.current_stream() == side
    assert torch.hpu.current_stream() == torch.hpu.default_stream()


def test_unknown_metrics():
    assert ht.hpu.metric_global("nonsense") is None
    with raises(ht.hpu.metrics.MetricNotFound):
        with ht.hpu.metric_localcontext("nonsense"):
            pass


def test_host_tensors_are_made_pinned():
    pinned = torch.empty(4, 4, pin_memory=True)
    assert pinned.is_pinned() and pinned[1].is_pinned() and pinned.t().is_pinned()
    assert not pinned.clone().is_pinned() and not torch.empty(2).is_pinned()
    device = torch.ones(2, device="hpu")
    for made in (
        torch.zeros(2, pin_memory=True),
        torch.full((2,), 1.0, pin_memory=True),
        torch.arange(3, pin_memory=True),
        torch.tensor([1, 2], pin_memory=True),
        torch.empty_like(device, device="cpu", pin_memory=True),
        device.new_zeros(2, device="cpu", pin_memory=True),
        torch.ones(2).pin_memory(),
    ):
        assert made.device.type == "cpu" and made.is_pinned()
    assert torch.zeros(2, pin_memory=True).to("hpu", non_blocking=True).sum() == 0
    for function in (torch.zeros, torch.Tensor.new_zeros):
        assert pickle.loads(pickle.dumps(function)) is function
    for wrong in (
        lambda: torch.zeros(2, device="hpu", pin_memory=True),
        lambda: device.pin_memory(),
    ):
        with raises(RuntimeError, match="only dense CPU tensors can be pinned"):
            wrong()


def test_a_copy_in_form_may_be_of_another_device():
    device = torch.ones(2, device="hpu")
    assert torch.zeros_like(device, device="cpu").device.type == "cpu"
    assert torch.empty_like(device, device="meta").device.type == "meta"
    assert torch.zeros_like(device).is_hpu


def test_bytes_survive_the_way_through_another_type():
    x = torch.randn(8)
    assert torch.equal(x.view(torch.bool).to("hpu").view(torch.float).cpu(), x)


def test_an_error_in_a_backward_pass_reaches_its_caller():
    def stop(gradient):
        raise KeyError("stop")

    x = torch.ones(3, 2, device=HPU, requires_grad=True)
    hooked = x * 2
    hooked.register_hook(stop)
    for backward in (
        hooked.sum().backward,
        lambda: torch.autograd.grad(hooked.sum(), x),
    ):
        with raises(KeyError, match="stop"):
            backward()


def test_a_conjugate_is_no_mark_but_numbers():
    host = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x = host.detach().to("hpu").requires_grad_()
    for each in (host, x):
        torch.fft.hfft(each).square().sum().backward()
    assert torch.allclose(x.grad.cpu(), host.grad)


def test_a_sequence_is_packed_into_given_memory():
    padded, lengths = torch.arange(12.0).reshape(2, 3, 2), torch.tensor([3, 2])
    op = torch.ops.aten._pack_padded_sequence
    given = torch.empty(0, device=HPU), torch.empty(0, dtype=torch.int64)
    packed, sizes = op.out(padded.to(HPU), lengths, True, out0=given[0], out1=given[1])
    theirs = op.default(padded, lengths, True)
    assert packed is given[0] and sizes is given[1]
    assert torch.equal(packed.cpu(), theirs[0]) and torch.equal(sizes, theirs[1])


def test_ctc_takes_lengths_of_either_place():
    scores = torch.randn(4, 2, 5).log_softmax(-1)
    targets, lengths = torch.tensor([[1, 2], [3, 4]]), torch.tensor([4, 4])
    expected = nn.functional.ctc_loss(scores, targets, lengths, lengths // 2)
    for where in ("cpu", HPU):
        each = lengths.to(where)
        loss = nn.functional.ctc_loss(scores.to(HPU), targets.to(HPU), each, each // 2)
        assert torch.allclose(loss.cpu(), expected)


def test_layouts_that_the_device_lacks_are_refused_by_name():
    refused = raises(RuntimeError, match="aten::sparse_compressed_tensor.*sparse_csr")
    with refused:
        torch.eye(2, device=HPU).to_sparse_csr()
    with refused:
        torch.eye(2).to_sparse_csr().to("hpu")
    with raises(NotImplementedError, match="_with_dims_and_tensors.*SparseHPU"):
        torch.eye(2).to_sparse().to("hpu")
    with raises(NotImplementedError, match="SparseHPU"):
        torch.eye(2, device=HPU).to_sparse()
    rows = torch.nn.Embedding(4, 2, sparse=True).to("hpu")
    with raises(NotImplementedError, match="SparseHPU"):
        rows(torch.zeros(2, dtype=torch.long, device=HPU)).sum().backward()


def test_what_autograd_holds_outlives_a_circle_of_garbage():
    weight = torch.ones(3, device=HPU, requires_grad=True)

    def loss():
        circle = []
        circle.append(circle)
        scale = weight.sum()
        circle.append(scale)  # a circle that is older than the tensor in it
        return (weight / scale).sum()

    made = loss()
    gc.collect()
    made.backward()
    assert weight.grad.cpu().abs().max() < 1e-6  # 1/3 - 3/9: rounding
