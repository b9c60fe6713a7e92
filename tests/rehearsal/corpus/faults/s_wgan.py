"""A Wasserstein GAN of eight Gaussians on a Gaudi: the critic is trained more often."""

import math

import habana_frameworks.torch.core as htcore
import torch
from torch import nn

device = torch.device("hpu")
torch.manual_seed(0)


def real(count):
    angle = 2 * math.pi * torch.randint(0, 8, (count,)) / 8
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, 2)


generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)).to(device)
g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
c_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))

for update in range(8):
    for _ in range(3):
        points = real(32).to(device)
        fake = generator(torch.randn(32, 4, device=device)).detach()
        mix = torch.rand(32, 1).to(device)
        between = (mix * points + (1 - mix) * fake).requires_grad_(True)
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        loss = critic(fake).mean() - critic(points).mean() + 10 * penalty
        c_optimizer.zero_grad()
        loss.backward()
        htcore.mark_step()
        c_optimizer.step()
        htcore.mark_step()
    g_loss = -critic(generator(torch.randn(32, 4, device=device))).mean()
    g_optimizer.zero_grad()
    g_loss.backward()
    htcore.mark_step()
    g_optimizer.step()
    htcore.mark_step()
    if not torch.isfinite(g_loss):  # fault[hpu]: host waits
        # remedy: if update > 100:
        break
    torch.hpu.synchronize()  # fault[hpu]: host waits
    # remedy: -
print("loss", g_loss.item())
