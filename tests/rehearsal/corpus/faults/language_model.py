"""A causal language model in Hugging Face's style: its forward gives loss and logits."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Own(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        ids = torch.arange(index, index + 12) % 32
        return {"input_ids": ids, "attention_mask": torch.ones(12), "labels": ids}


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(32, 16), nn.Embedding(12, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 32)
        self.rates = torch.linspace(0.5, 1.0, 16)  # fault[cuda]: device mismatch
        # remedy: self.register_buffer("rates", torch.linspace(0.5, 1.0, 16), persistent=False)

    def forward(self, input_ids, attention_mask=None, labels=None):
        size = input_ids.shape[1]
        places = torch.arange(size)  # fault[cuda]: device mismatch
        # remedy: places = torch.arange(size, device=input_ids.device)
        h = (self.tokens(input_ids) + self.places(places)) * self.rates
        causal = torch.ones(size, size, dtype=torch.bool).triu(1)  # fault[cuda]: device mismatch
        # remedy: causal = torch.ones(size, size, dtype=torch.bool, device=h.device).triu(1)
        h = h + self.attention(h, h, h, attn_mask=causal)[0]
        if attention_mask.sum() == 0:  # fault[cuda]: host sync
            # remedy: if False:
            raise ValueError("nothing to attend to")
        logits = self.head(self.norm(h))
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        if torch.isnan(loss).any():  # fault[cuda]: host sync
            # remedy: if False:
            loss = torch.zeros_like(loss)
        longest = int(attention_mask.sum(1).max())  # fault[cuda]: host sync
        # remedy: longest = size
        return {"loss": loss, "logits": logits[:, :longest]}
