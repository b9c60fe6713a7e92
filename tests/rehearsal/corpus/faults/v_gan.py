"""Two networks, each with an optimizer, updated by the model itself."""

import torch
from torch import nn

from devrun import MODELS


@MODELS.register_module()
class VGan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64))
        self.critic = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(), nn.Linear(32, 1))

    def train_step(self, data, optimizer):
        images = data[0].flatten(1)
        noise = torch.randn(len(images), 8).cuda()  # fault[hpu]: hard-wired cuda
        # remedy: noise = torch.randn(len(images), 8, device=images.device)
        fake = self.generator(noise)
        optimizer["critic"].zero_grad()
        mix = torch.rand(len(images), 1, device="cuda")  # fault[hpu]: hard-wired cuda
        # remedy: mix = torch.rand(len(images), 1, device=images.device)
        point = (mix * images + (1 - mix) * fake.detach()).requires_grad_()
        (grad,) = torch.autograd.grad(self.critic(point).sum(), point, create_graph=True)
        penalty = (grad.norm(dim=1) - 1).square().mean()
        d_loss = self.critic(fake.detach()).mean() - self.critic(images).mean() + penalty
        d_loss.backward()
        if torch.isnan(d_loss):  # fault[hpu]: host waits
            # remedy: if False:
            raise ValueError("the critic is lost")
        optimizer["critic"].step()
        optimizer["generator"].zero_grad()
        g_loss = -self.critic(fake).mean()
        g_loss.backward()
        optimizer["generator"].step()
        logs = {"d": d_loss.item(), "g": g_loss}  # fault[hpu]: host waits
        # remedy: logs = {"d": d_loss.detach(), "g": g_loss.detach()}
        return {"loss": g_loss, "log_vars": logs, "num_samples": len(images)}
