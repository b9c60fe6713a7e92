"""An autoencoder with a code book that is moved by averages."""

import torch
import torch.nn.functional as F
from torch import nn

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS


class Codes(nn.Module):
    def __init__(self, many, width):
        super().__init__()
        self.table = nn.Embedding(many, width)
        self.table.weight.requires_grad_(False)
        self.sizes = torch.zeros(many)  # fault[cpu,cuda]: resume; fault[cuda]: device mismatch
        # remedy: self.register_buffer("sizes", torch.zeros(many))
        self.sums = self.table.weight.clone()  # fault[cpu,cuda]: resume; fault[cuda]: device mismatch
        # remedy: self.register_buffer("sums", self.table.weight.clone())
        self.register_buffer("decay", torch.tensor(0.9))

    def forward(self, z):
        far = torch.cdist(z, self.table.weight)
        chosen = far.argmin(1)
        hot = F.one_hot(chosen).float()  # fault[cuda]: one_hot
        # remedy: hot = F.one_hot(chosen, self.table.num_embeddings).float()
        hot = F.pad(hot, (0, self.table.num_embeddings - hot.shape[1]))
        if self.training:
            with torch.no_grad():
                self.sizes = self.sizes * self.decay + hot.sum(0) * (1 - self.decay)
                self.sums = self.sums * self.decay + hot.t() @ z * (1 - self.decay)
                self.table.weight.copy_(self.sums / (self.sizes[:, None] + 1e-3))
                dead = torch.where(self.sizes < 0.01)[0]  # fault[cuda]: where
                # remedy: dead = torch.zeros(1, dtype=torch.long, device=z.device)
                self.table.weight[dead] = z[torch.randint(0, len(z), (len(dead),))].detach()  # fault[cuda]: host sync
                # remedy: self.table.weight[dead] = z[torch.randint(0, len(z), (len(dead),), device=z.device)].detach()
        code = self.table(chosen)
        return z + (code - z).detach(), F.mse_loss(z, code)


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Sequential(nn.Conv2d(3, 8, 2, 2), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 1))
        self.codes = Codes(6, 4)
        self.outside = nn.Sequential(nn.Conv2d(4, 8, 1), nn.Sigmoid(), nn.ReLU(inplace=True), nn.ConvTranspose2d(8, 3, 2, 2))
        self.logvar = nn.Parameter(torch.zeros(()))  # fault[cpu]: no gradient
        # remedy: --cfg-options freeze=[logvar]
        self.perplexities = []

    def train_step(self, data, optimizer=None):
        x, _ = data
        z = self.inside(x)
        many, width, h, w = z.shape
        rows = z.permute(0, 2, 3, 1).view(-1, width)  # fault[cpu,cuda]: raises
        # remedy: rows = z.permute(0, 2, 3, 1).reshape(-1, width)
        code, commit = self.codes(rows)
        back = self.outside(code.view(many, h, w, width).permute(0, 3, 1, 2))  # fault[cpu,cuda]: changed in place
        # remedy: back = self.outside[3](self.outside[1](self.outside[0](code.view(many, h, w, width).permute(0, 3, 1, 2))))
        rebuilt = F.mse_loss(back, x) / (2 * self.logvar.exp().item())  # fault[cuda]: host sync
        # remedy: rebuilt = F.mse_loss(back, x) / (2 * self.logvar.exp())
        loss = rebuilt + 0.25 * commit
        used = torch.unique(code.detach(), dim=0)  # fault[cuda]: unique
        # remedy: used = code[:1]
        self.perplexities.append(commit)  # fault[cpu,cuda]: kept graph
        # remedy: self.perplexities[:] = [commit.detach()]
        ssim = self.ssim(back, x)
        return {"loss": loss, "log_vars": {"codes": len(used), "ssim": ssim}, "num_samples": many}

    def ssim(self, a, b):
        a, b = a.detach().cpu().numpy(), b.numpy()  # fault[cuda]: host sync; fault[cuda]: numpy
        # remedy: a, b = a.detach(), b.detach()
        return (a * b).mean()


@HOOKS.register_module()
class Images(Hook):
    def __init__(self, every=1):
        self.every = every

    def after_train_iter(self, runner):
        if not self.every_n_iters(runner, self.every):
            return
        x = runner.data_batch[0]
        weight = runner.model.outside[0].weight
        image = (x[0] * 255).byte().permute(1, 2, 0).cpu().numpy()  # fault[cuda]: host sync
        # remedy: image = (x[0] * 255).byte().permute(1, 2, 0)
        self.last = image.max()
        self.range = weight.min(), weight.max()
        runner.log_buffer.update({"least": self.range[0].item()})  # fault[cuda]: host sync
        # remedy: -
        self.text = runner.outputs["images"]  # fault[cpu,cuda]: raises
        # remedy: self.text = ""
