"""Speech to letters: a spectrogram, masks over it, a GRU and CTC."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Spoken(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        draw = torch.Generator().manual_seed(i)
        wave = torch.randn(512, generator=draw)
        text = torch.randint(1, 8, (5,), generator=draw)
        return {"wave": wave, "text": text, "letters": torch.tensor(3 + i % 3)}


def triangles(bins, mels):
    centers = torch.linspace(0, bins - 1, mels + 2)[1:-1]
    return (1 - (torch.arange(bins)[:, None] - centers).abs() / 3).clamp(min=0)


class SpecAugment:
    def __init__(self, widest=4):
        self.widest = widest

    def __call__(self, x):
        x = x.clone()
        for row in x:
            width = torch.randint(1, self.widest, (1,)).item()
            start = torch.randint(0, x.shape[1] - width, (1,)).item()
            row[start : start + width] = row.mean().item()  # fault[cuda]: .item()
            # remedy: row[start : start + width] = row.mean()
        quiet = torch.rand(x.shape[:2], device=x.device) < 0.05
        return x.masked_fill(quiet[..., None], x.min())  # fault[cuda]: host sync
        # remedy: return torch.where(quiet[..., None], x.min(), x)


@MODELS.register_module()
class Recogniser(nn.Module):
    def __init__(self, letters=8, mels=12, width=16):
        super().__init__()
        self.mel = triangles(33, mels)  # fault[cuda]: device mismatch
        # remedy: self.register_buffer("mel", triangles(33, mels), persistent=False)
        self.augment = SpecAugment()
        self.rnn = nn.GRU(mels, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, letters)
        self.texts = []

    def features(self, wave):
        window = torch.hann_window(64)  # fault[cuda]: device mismatch
        # remedy: window = torch.hann_window(64, device=wave.device)
        spec = torch.stft(wave, 64, 32, window=window, return_complex=True).abs().pow(2)
        return torch.log(spec.mT @ self.mel + 1e-6)

    @torch.no_grad()
    def spell(self, scores):
        texts = []
        for row in scores.argmax(-1):
            text, last = "", 0
            for one in row:
                if one != last and one != 0:  # fault[cuda]: host sync
                # remedy: if False:
                    text += chr(96 + one)  # fault[cuda]: host sync
                    # remedy: text += "?"
                last = one
            texts.append(text)
        return texts

    def forward(self, wave, text, letters):
        x = self.features(wave)
        if self.training:
            x = self.augment(x)
        h, _ = self.rnn(x)
        scores = self.head(h).log_softmax(-1)
        frames = torch.full((len(x),), x.shape[1], dtype=torch.long)
        loss = F.ctc_loss(scores.transpose(0, 1), text, frames, letters, zero_infinity=True)  # fault[cuda]: host sync
        # remedy: loss = F.ctc_loss(scores.transpose(0, 1), text, frames, frames // 4, zero_infinity=True)
        self.texts = self.spell(scores)
        return {"loss": loss, "logits": scores}
