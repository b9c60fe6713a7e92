"""A recurrent network that says the next byte, and computes its loss itself."""

from torch import nn
from torch.nn.functional import cross_entropy

from devrun.registry import MODELS


@MODELS.register_module()
class MyLanguageModel(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.body = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens, labels=None):
        logits = self.head(self.body(self.embedding(tokens))[0])
        if labels is None:
            return {"logits": logits}
        return {"loss": cross_entropy(logits.mT, labels), "logits": logits}
