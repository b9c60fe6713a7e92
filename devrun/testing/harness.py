"""`AdapterTests`, and the same small training by hand and through an adapter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from devrun.devices.base import DeviceAdapter
from devrun.devices.resolve import resolve_device
from devrun.models.step_module import StepModule
from devrun.step import UpdatePolicy


def net() -> nn.Module:
    """A convolution and a linear layer with the same weights each time."""
    torch.manual_seed(11)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 16, 4)
    )


def dropping() -> nn.Module:
    """The usual net, with a random stream in it."""
    return nn.Sequential(nn.Dropout(0.5), net())


class Counting(nn.Module):
    """Gives what it is given, and counts its calls in a buffer."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return inputs


def counting() -> nn.Module:
    return nn.Sequential(Counting(), net())


def groups_of(model: nn.Module) -> list[list[nn.Parameter]]:
    """Weights and biases."""
    params = list(model.parameters())
    return [params[0::2], params[1::2]]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    weights, biases = groups_of(model)
    groups: list[dict[str, Any]] = [
        {"params": weights},
        {"params": biases, "momentum": 0.8},
    ]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def batches(count: int, size: int = 6) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (
            torch.randn(size, 2, 4, 4, generator=generator),
            torch.randint(0, 4, (size,), generator=generator),
        )
        for _ in range(count)
    ]


def loader(samples: int, batch_size: int, **options: Any) -> DataLoader[Any]:
    """Batches whose labels tell the samples apart."""
    generator = torch.Generator().manual_seed(6)
    inputs = torch.randn(samples, 2, 4, 4, generator=generator)
    data = TensorDataset(inputs, torch.arange(samples))
    return DataLoader(data, batch_size=batch_size, **options)


def by_hand(
    data: list[tuple[Tensor, Tensor]],
    clip: dict[str, Any] | None = None,
    module: nn.Module | None = None,
    then: Mapping[str, float] = MappingProxyType({}),
) -> tuple[list[float], nn.Module]:
    """Losses, and the model after a plain loop on the host.

    `then` are values of all groups after the first update.
    """
    model, losses = module or net(), []
    optimizer = sgd(model)
    for inputs, labels in data:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        if clip and "clip_value" in clip:
            nn.utils.clip_grad_value_(model.parameters(), **clip)
        elif clip:
            nn.utils.clip_grad_norm_(model.parameters(), **clip)
        optimizer.step()
        losses.append(loss.item())
        for group in optimizer.param_groups:
            group.update(then)
    return losses, model


def gradients(model: nn.Module) -> list[Tensor]:
    """Those of all parameters, themselves; each one must have some."""
    found = [param.grad for param in model.parameters()]
    assert all(grad is not None for grad in found)
    return [grad for grad in found if grad is not None]


class Session:
    """A model and its optimizer, prepared by one adapter."""

    def __init__(
        self,
        adapter: DeviceAdapter,
        policy: UpdatePolicy | None = None,
        module: nn.Module | None = None,
    ) -> None:
        self.adapter = adapter
        self.module = net() if module is None else module
        optimizer = sgd(self.module)
        self.groups = [dict(group) for group in optimizer.param_groups]
        self.model, self.optimizer = adapter.prepare(
            StepModule(self.module, nn.CrossEntropyLoss()),
            optimizer,
            policy or UpdatePolicy(),
        )

    def train(self, data: list[Any], **options: Any) -> list[float]:
        return [float(self.step(batch, **options)["loss"]) for batch in data]

    def step(self, batch: Any, **options: Any) -> Any:
        (on_device,) = self.adapter.prepare_dataloader([batch], training=False)
        return self.adapter.train_step(self.model, on_device, self.optimizer, **options)

    def evaluate(self, batch: Any, mode: str = "val") -> Any:
        (on_device,) = self.adapter.prepare_dataloader([batch], training=False)
        return self.adapter.eval_step(self.model, on_device, mode)

    def set(self, **values: float) -> None:
        """Of all groups of the optimizer."""
        for group in self.optimizer.param_groups:
            group.update(values)

    def host_weights(self) -> dict[str, Tensor]:
        """Those that a checkpoint would hold."""
        self.adapter.sync_to_host(self.model)
        weights = self.adapter.unwrap_model(self.model).state_dict()
        return {name: value.to("cpu", copy=True) for name, value in weights.items()}


class AdapterTests:
    """Common part of the conformance tests; a subclass names its device."""

    device: ClassVar[Any] = None
    """What a user writes for the device: a name, or a mapping with `type`."""
    torch_device: ClassVar[str | None] = None
    """The type of `torch.device` that its tensors have; None: that of the adapter's
    `device`, which is the CPU only where its `host_shared` says that it is."""
    rtol: ClassVar[float] = 1e-4
    atol: ClassVar[float] = 1e-5
    """How far losses and weights may be from those of a plain loop on the CPU."""

    @pytest.fixture
    def adapter(self) -> Iterator[DeviceAdapter]:
        """The device's adapter, set up and, in the end, torn down."""
        made = resolve_device(self.device)
        made.setup(0)
        yield made
        made.teardown()

    def section(self, **options: Any) -> dict[str, Any]:
        """The device as a config's section, with these options too."""
        given = {"type": self.device} if isinstance(self.device, str) else self.device
        return {**given, **options}

    def assert_close(self, mine: Tensor, theirs: Tensor) -> None:
        """Equal on the host, within the tolerances of this class."""
        torch.testing.assert_close(mine.cpu(), theirs, rtol=self.rtol, atol=self.atol)

    def assert_same_weights(self, mine: Mapping[str, Tensor], other: nn.Module) -> None:
        """`mine` are the weights of `other`, which was trained on the host."""
        theirs = other.state_dict()
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            self.assert_close(value, theirs[name])
