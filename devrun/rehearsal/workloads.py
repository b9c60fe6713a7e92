"""The operations that `devrun devices --bench` measures, each with its work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from devrun.text import joined

DTYPES = {"fp64": torch.float64, "fp32": torch.float32,
          "bf16": torch.bfloat16, "fp16": torch.float16}  # fmt: skip


@dataclass(frozen=True)
class Convolution:
    """A two-dimensional one: shapes of its input and weight, and its options."""

    shape: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def words(self) -> str:
        """`3x3 stride 2, 64 to 128 channels, 56x56, batch 16`."""
        batch, channels, *size = self.shape
        kernel = "x".join(map(str, self.weight[2:]))
        kernel += f" stride {self.stride[0]}" * (self.stride != (1, 1))
        kernel += f" dilated {self.dilation[0]}" * (self.dilation != (1, 1))
        kernel += f" in {self.groups} groups" * (self.groups > 1)
        change = f"{channels} to {self.weight[0]} channels"
        return f"{kernel}, {change}, {'x'.join(map(str, size))}, batch {batch}"

    def options(self) -> dict[str, Any]:
        """Those of `torch.nn.functional.conv2d`."""
        return {
            "stride": self.stride, "padding": self.padding,
            "dilation": self.dilation, "groups": self.groups,
        }  # fmt: skip


CONVOLUTIONS = (
    Convolution((16, 64, 56, 56), (64, 64, 3, 3), padding=(1, 1)),
    Convolution((16, 256, 28, 28), (256, 256, 1, 1)),
    Convolution((8, 3, 224, 224), (64, 3, 7, 7), (2, 2), (3, 3)),
    Convolution((16, 128, 56, 56), (128, 1, 3, 3), padding=(1, 1), groups=128),
)


@dataclass(frozen=True)
class Layers:
    """What a model runs: matrix products, each (m, k, n), and convolutions."""

    products: tuple[tuple[int, int, int], ...] = ()
    convolutions: tuple[Convolution, ...] = ()


@dataclass(frozen=True)
class Case:
    """One operation.

    `work` is what one run of it does, in FLOP or bytes; 1 where its time is asked for.
    """

    kind: str
    dtype: str
    shape: str
    work: float
    unit: str
    run: Callable[[], Any]


def cases(
    device: torch.device,
    dtypes: Collection[str],
    *,
    own_memory: bool,
    layers: Layers | None = None,
) -> tuple[list[Case], list[str]]:
    """What is measured on `device`, and what is not, with the reason.

    Args:
        dtypes: what the device lists, of which `tf32` is looked at.
        own_memory: whether it has memory apart from the host's, and is fed larger work.
        layers: those of a model, beside the usual ones.
    """
    large, layers = own_memory, layers or Layers()
    found: list[Case] = []
    left_out = ["int8: torch has no public matrix product of it"]
    for name, dtype in DTYPES.items():
        try:
            tf32 = name == "fp32" and "tf32" in dtypes
            own = layers.products
            found += _products(device, name, dtype, large, own, tf32=tf32)
        except (TypeError, RuntimeError) as error:  # a type that the device lacks
            left_out.append(f"{name}: {joined(error)}")
            continue
        if name != "fp64":
            found += _convolutions(device, name, dtype, layers.convolutions)
            found.append(_attention(device, name, dtype))
    if not large:
        left_out.append("fp8: torch converts it on this device, which shows nothing")
    elif not hasattr(F, "scaled_mm"):
        left_out.append(f"fp8: torch {torch.__version__} has no scaled_mm")
    else:
        found += _narrow(device)
    found += [*_memory(device, large), _launch(device)]
    if large:
        found += _copies(device)
    else:
        left_out.append("copies: the device's memory is the host's")
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        found += _reductions(device)
    else:
        left_out.append("all_reduce: one process; start it with torchrun for more")
    return found, left_out


def _random(*shape: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, device=device).to(dtype)  # zeros would draw less power


def _shapes(large: bool) -> list[tuple[int, int, int, int]]:
    """(batch, m, k, n) of products; those for a GPU, or for a CPU."""
    sides = (1024, 4096, 8192) if large else (256, 1024)
    tall = 65536 if large else 4096
    return [
        *((1, side, side, side) for side in sides),
        (1, 1000, 1001, 1000),
        (1, tall, 64, 64),
        (1, 64, tall, 64),
        (512 if large else 64, 128, 64, 128),
    ]


def _products(
    device: torch.device,
    name: str,
    dtype: torch.dtype,
    large: bool,
    layers: Sequence[tuple[int, int, int]],
    *,
    tf32: bool,
) -> list[Case]:
    shapes = _shapes(large) + [(1, *layer) for layer in layers]
    found = []
    for batch, m, k, n in dict.fromkeys(shapes):
        words = f"{m}x{k} by {k}x{n}" + f", {batch} of them" * (batch > 1)
        lead = (batch,) if batch > 1 else ()
        a = _random(*lead, m, k, device=device, dtype=dtype)
        b = _random(*lead, k, n, device=device, dtype=dtype)
        work = 2.0 * batch * m * k * n
        run = partial(torch.matmul, a, b)
        found.append(Case("matmul", name, words, work, "GFLOP/s", run))
        if tf32:
            quick = _as_tf32(run)
            found.append(Case("matmul", "tf32", words, work, "GFLOP/s", quick))
    return found


def _as_tf32(run: Callable[[], Any]) -> Callable[[], Any]:
    def quick() -> Any:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            return run()
        finally:
            torch.set_float32_matmul_precision(before)

    return quick


def _convolutions(
    device: torch.device,
    name: str,
    dtype: torch.dtype,
    own: Sequence[Convolution],
) -> list[Case]:
    found = []
    for one in dict.fromkeys((*CONVOLUTIONS, *own)):
        x = _random(*one.shape, device=device, dtype=dtype)
        w = _random(*one.weight, device=device, dtype=dtype)
        places = F.conv2d(x[:1], w, **one.options())[0, 0].numel()
        work = 2.0 * one.shape[0] * places * w.numel()
        for layout, form in (("", None), (", channels last", torch.channels_last)):
            if form is not None:
                x, w = x.to(memory_format=form), w.to(memory_format=form)
            run = partial(F.conv2d, x, w, **one.options())
            words = one.words() + layout
            found.append(Case("conv", name, words, work, "GFLOP/s", run))
    return found


def _attention(device: torch.device, name: str, dtype: torch.dtype) -> Case:
    batch, heads, length, width = 4, 8, 512, 64
    q, k, v = (
        _random(batch, heads, length, width, device=device, dtype=dtype)
        for _ in range(3)
    )
    # two products, of which the mask leaves half
    work = 2.0 * batch * heads * length * length * width
    run = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
    words = f"causal, {heads} heads of {width}, {length} tokens, batch {batch}"
    return Case("attention", name, words, work, "GFLOP/s", run)


def _narrow(device: torch.device) -> list[Case]:
    found = []
    one = torch.ones((), device=device)
    scaling = F.ScalingType.TensorWise
    for side in (1024, 4096, 8192):
        a = _random(side, side, device=device, dtype=torch.float8_e4m3fn)
        b = _random(side, side, device=device, dtype=torch.float8_e4m3fn).t()
        scales = (one, scaling, one, scaling)
        run = partial(F.scaled_mm, a, b, *scales, output_dtype=torch.bfloat16)
        words = f"{side}x{side} by {side}x{side}"
        found.append(Case("matmul", "fp8", words, 2.0 * side**3, "GFLOP/s", run))
    return found


def _memory(device: torch.device, large: bool) -> list[Case]:
    """The STREAM triad, a = b + s c: bytes as STREAM counts them, 3 a value."""
    count = 1 << (28 if large else 25)  # far more than the caches hold
    a, b, c = (torch.rand(count, device=device) for _ in range(3))
    run = partial(torch.add, b, c, alpha=3.0, out=a)
    words = f"triad over {count * 4 >> 20} MiB arrays"
    return [Case("memory", "fp32", words, 12.0 * count, "GB/s", run)]


def _launch(device: torch.device) -> Case:
    one = torch.ones(1, device=device)
    run = partial(torch.add, one, one, out=torch.empty_like(one))
    return Case("launch", "fp32", "one addition", 1.0, "us", run)


def _copies(device: torch.device) -> list[Case]:
    count = 1 << 26
    there = torch.empty(count, device=device)
    found = []
    for words, pinned in (
        ("from pageable memory", False),
        ("from pinned memory", True),
    ):
        try:
            here = torch.rand(count, pin_memory=pinned)
        except RuntimeError:  # a device whose host memory cannot be pinned
            continue
        run = partial(there.copy_, here, non_blocking=pinned)
        found.append(Case("copy", "fp32", words, 4.0 * count, "GB/s", run))
    return found


def _reductions(device: torch.device) -> list[Case]:
    """Bus bandwidth, as nccl-tests count it: bytes times 2 (n - 1) / n."""
    world = dist.get_world_size()
    found = []
    for count in (1 << 18, 1 << 24):
        values = torch.rand(count, device=device)
        work = 4.0 * count * 2 * (world - 1) / world
        words = f"{count * 4 >> 20} MiB over {world} processes"
        run = partial(dist.all_reduce, values)
        found.append(Case("all_reduce", "fp32", words, work, "GB/s", run))
    return found


def layers_of(cfg: Mapping[str, Any]) -> Layers:
    """The linear layers and the convolutions that a config's model runs.

    The training is run dry, on two batches, for the sizes of its batches.

    Raises:
        DevrunError: as the training would.
    """
    from devrun.runners.training import build_training

    training = build_training(cfg, validate=False, dry_run=True, progress=False)
    products: dict[tuple[int, int, int], None] = {}
    convolutions: dict[Convolution, None] = {}

    def product(layer: Any, given: tuple[Any, ...], out: Any) -> None:
        rows = given[0].numel() // layer.in_features
        products[rows, layer.in_features, layer.out_features] = None

    def convolution(layer: Any, given: tuple[Any, ...], out: Any) -> None:
        named = isinstance(layer.padding, str) or layer.padding_mode != "zeros"
        if given[0].dim() == 4 and not named:
            options = layer.stride, layer.padding, layer.dilation, layer.groups
            shapes = tuple(given[0].shape), tuple(layer.weight.shape)
            convolutions[Convolution(*shapes, *options)] = None

    for module in training.runner.model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(product)
        elif isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(convolution)
    with closing(training.runner):
        training.run()
    return Layers(tuple(products), tuple(convolutions))
