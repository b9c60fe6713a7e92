"""A model of the time when all new tensors were put on the GPU, with a newer attention."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from devrun.registry import MODELS

# pytorch.org/docs, torch.set_default_tensor_type: deprecated as of 2.1
torch.set_default_tensor_type("torch.cuda.FloatTensor")  # fault[cpu,hpu,ipu]: hard-wired cuda
# remedy: -


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts, self.net = nn.Linear(4, 12), nn.Linear(16, 4)

    def forward(self, x):
        noise = torch.randn(x.shape)  # fault[hpu]: device mismatch
        # remedy: noise = torch.randn_like(x)
        q, k, v = self.parts((x + 0.1 * noise).view(len(x), 1, 4, 4)).chunk(3, dim=-1)
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            h = F.scaled_dot_product_attention(q, k, v)  # fault[cpu]: raises
            # remedy: h = (q @ k.transpose(-2, -1) / 2).softmax(-1) @ v
        return self.net(h.flatten(1))
