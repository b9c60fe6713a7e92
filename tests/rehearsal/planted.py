"""A program for `devrun compare` in which faults can be planted; see pairs.yaml."""

import random
import sys

import torch
from torch import nn
from torch.nn import functional as F

from devrun.hooks import Hook, OptimizerHook
from devrun.registry import DATASETS, HOOKS, MODELS
from devrun.tensors import map_tensors


def here(x, plant, name):
    """Whether fault `name` is planted: everywhere, or on the second device alone."""
    if plant == "bf16: " + name:
        return torch.is_autocast_enabled("cpu")
    if plant == "hpu: " + name:
        return x.device.type == "hpu"
    if plant == "ipu: " + name:
        poptorch = sys.modules.get("poptorch")
        return poptorch is not None and poptorch.isRunningOnIpu()
    return plant == name


def fresh():
    """A generator that no seed reaches."""
    generator = torch.Generator()
    generator.seed()
    return generator


class Faulty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.5


class Attention(nn.Module):
    def __init__(self, plant=""):
        super().__init__()
        self.qkv, self.plant = nn.Linear(8, 24), plant

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        at = torch.arange(x.shape[1], device=x.device)
        mask = at[:, None] >= at
        if here(x, self.plant, "mask"):
            mask = mask.t()
        scores = (q @ k.transpose(-1, -2)).masked_fill(~mask, -1e4)
        return torch.softmax(scores / 8**0.5, -1) @ v


class DropPath(nn.Module):
    def __init__(self, drop_prob):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        if not self.drop_prob:
            return x
        return x * (torch.rand(len(x), 1, device=x.device) > self.drop_prob)


class Hidden(nn.Module):
    def __init__(self, plant=""):
        super().__init__()
        self.linear, self.plant = nn.Linear(8, 8), plant

    def forward(self, x):
        weight = self.linear.weight
        if here(x, self.plant, "half"):
            return F.linear(x.bfloat16(), weight.bfloat16()).to(x.dtype)
        if here(x, self.plant, "gradient"):
            weight = Faulty.apply(weight)
        if here(x, self.plant, "faint"):
            weight = weight * (1 + 2e-5)
        if here(x, self.plant, "unseeded"):
            x = x + 0.3 * torch.randn(x.shape, generator=fresh()).to(x)
        return torch.tanh(F.linear(x, weight, self.linear.bias))


class Block(nn.Module):
    def __init__(self, plant=""):
        super().__init__()
        self.hidden, self.tail = Hidden(plant), nn.Linear(8, 8)
        self.plant = plant

    def forward(self, x):
        x = self.hidden(x)
        if here(x, self.plant, "between"):
            x = x * 1.01
        return self.tail(x)


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self, plant="", norm=None, drop=0.3, path=0.2, drops=True):
        super().__init__()
        self.attention = Attention(plant)
        self.drop = nn.Dropout(drop) if drops else nn.Identity()
        self.path = DropPath(path)
        self.block = Block(plant)
        self.norm = nn.BatchNorm1d(8, **(norm or {}))
        self.head, self.plant = nn.Linear(8, 4), plant
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("nothing", torch.zeros(8))  # but for rounding
        if plant == "frozen":
            self.block.tail.weight.requires_grad_(False)
        if plant == "first weights":
            nn.init.normal_(self.block.tail.weight)

    def forward(self, x):
        x = self.attention(x.unflatten(1, (-1, 8))).mean(1)
        x = self.block(self.path(self.drop(x)))
        if self.training:
            rate = 0.5 if here(x, self.plant, "average") else 0.1
            self.mean.mul_(1 - rate).add_(rate * x.detach().mean(0))
        x = self.norm(x)
        if self.training:
            self.nothing.copy_(x.detach().mean(0))
        x = self.head(x)
        return x * 1.3 if here(x, self.plant, "output") else x


@MODELS.register_module()
class Convolved(nn.Module):
    """Biases before normalisations: their gradients are zero but for rounding."""

    def __init__(self, still=False):
        super().__init__()
        self.stem, self.first = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.body, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.head, self.still = nn.Linear(4, 4), still

    def forward(self, x):
        if self.still:
            self.second.eval()
        x = x.unflatten(1, (1, 4, 8))
        x = F.relu(self.first(self.stem(x)))
        x = F.relu(x + self.second(self.body(x)))
        return self.head(x.mean((2, 3)))


@MODELS.register_module()
class Recurrent(nn.LSTM):
    def forward(self, x):
        return super().forward(x.unflatten(1, (-1, 8)))[0][:, -1]


@MODELS.register_module()
class Adversarial(nn.Module):
    """Updates its two halves itself, each by an optimizer of its own."""

    def __init__(self, plant=""):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(32, 8), nn.Tanh(), nn.Linear(8, 1))
        self.generator, self.plant = nn.Linear(4, 32), plant

    def train_step(self, data, optimizer):
        real, label = data
        fake = self.generator(F.one_hot(label, 4).to(real))
        optimizer["critic"].zero_grad()
        shown = self.critic(fake.detach())
        wrong = F.softplus(-self.critic(real)) + F.softplus(shown)
        wrong.mean().backward(retain_graph=True)
        optimizer["critic"].step()
        if self.plant == "clamped":
            with torch.no_grad():
                self.critic[2].weight.clamp_(-0.1, 0.1)
        optimizer["generator"].zero_grad()
        fooled = F.softplus(-self.critic(fake)).mean()
        (2 * fooled if self.plant == "loss" else fooled).backward()
        optimizer["generator"].step()
        losses = {"loss_critic": wrong.mean().item(), "loss": fooled.item()}
        return {"log_vars": losses, "num_samples": len(real)}


@DATASETS.register_module()
class Drawn(torch.utils.data.Dataset):
    def __init__(self, draws=""):
        self.draws = draws

    def __len__(self):
        return 64

    def __getitem__(self, index):
        fixed = torch.Generator().manual_seed(index)
        x = torch.randn(32, generator=fixed) + index % 4
        if self.draws:
            own = fresh() if self.draws == "unseeded" else None
            x = x + 0.2 * torch.randn(32, generator=own)
        return x, index % 4


@HOOKS.register_module()
class OwnUpdate(OptimizerHook):
    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def after_train_iter(self, runner):
        runner.optimizer.zero_grad()
        (self.factor * runner.outputs["loss"]).backward()
        runner.optimizer.step()


@HOOKS.register_module()
class Shrink(Hook):
    def __init__(self, factor):
        self.factor = factor

    def after_train_iter(self, runner):
        with torch.no_grad():
            runner.model.head.weight.mul_(self.factor or random.SystemRandom().random())


class RoundsOtherwise(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.partition("::")[2]
        if name not in ROUNDED or func._schema.is_mutable:
            return func(*args, **(kwargs or {}))
        args, kwargs = cast((args, kwargs or {}), torch.float32, torch.float64)
        return cast(func(*args, **kwargs), torch.float64, torch.float32)


ROUNDED = """addmm mm bmm convolution convolution_backward _softmax _log_softmax tanh
sum mean mul div add nll_loss_forward""".split()


def cast(tree, old, new):
    return map_tensors(lambda x: x.to(new) if x.dtype == old else x, tree)


@HOOKS.register_module()
class AnotherDevice(Hook):
    """The training runs as on one that rounds each operation otherwise."""

    def before_run(self, runner):
        self.mode = RoundsOtherwise()
        self.mode.__enter__()

    def after_run(self, runner):
        self.mode.__exit__(None, None, None)
