"""An encoder of torch's, before which tokens are looked up."""

from torch import nn

from devrun.registry import MODELS

# devices: hpu ipu


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        ids = (x * 8).long().clamp(0, 63)
        return self.last(self.encoder(self.embed(ids)).mean(1))
