"""A tagger with a CRF written by hand and a beam of one."""

import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from devrun import DATASETS, MODELS
from devrun.registry import COLLATE_FUNCTIONS


@DATASETS.register_module()
class KTags(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        many = 3 + index % 9
        words = torch.randint(1, 30, (many,), generator=draw)
        return words, words % 4


@COLLATE_FUNCTIONS.register_module()
def padded(samples):
    words, tags = zip(*samples)
    words = pad_sequence(words, batch_first=True)
    return words, pad_sequence(tags, batch_first=True)  # fault[ipu]: changing shapes
    # remedy: return F.pad(words, (0, 12 - words.shape[1])), F.pad(pad_sequence(tags, batch_first=True), (0, 12 - words.shape[1]))


@MODELS.register_module()
class KTagger(nn.Module):
    def __init__(self, tags=4):
        super().__init__()
        self.words = nn.Embedding(30, 12)
        self.rnn = nn.GRU(12, 12, batch_first=True, num_layers=2, dropout=0.1)
        self.out = nn.Linear(12, tags)
        self.moves = nn.Parameter(torch.zeros(tags, tags))
        self.start = torch.full((tags,), -1e4)  # fault[hpu,ipu]: device mismatch
        # remedy: self.register_buffer("start", torch.full((tags,), -1e4))

    def decode(self, scores):
        path = [scores[:, 0].argmax(1)]
        for step in range(1, scores.shape[1]):
            best = scores[:, step] + self.moves[path[-1]]
            path.append(best.argmax(1))
        return torch.stack(path, 1)

    def train_step(self, data, optimizer):
        words, tags = data
        if random.random() < 0.2:  # fault[ipu]: once
            # remedy: if False:
            words = words.masked_fill(torch.rand(words.shape, device=words.device) < 0.1, 1)
        mask = words > 0
        lengths = mask.sum(1).tolist()  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: lengths = [words.shape[1]] * len(words)
        h, _ = self.rnn(self.words(words))  # fault[ipu]: cannot be compiled
        # remedy[ipu]: h = self.words(words)
        scores = self.out(h)
        alpha = scores[:, 0] + self.start * 0
        for step in range(1, words.shape[1]):
            new = torch.logsumexp(alpha[:, :, None] + self.moves, 1) + scores[:, step]
            alpha = torch.where(mask[:, step, None], new, alpha)
        right = torch.stack([scores[n, :size].gather(1, tags[n, :size, None]).sum() for n, size in enumerate(lengths)])
        loss = (alpha.logsumexp(1) - right).mean()
        said = self.decode(scores.detach())
        hits = (said == tags)[mask].sum()  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: hits = (said == tags).sum()
        found = torch.isin(said, torch.tensor([1, 2], device=said.device)).float().mean()  # fault[ipu]: cannot be compiled
        # remedy: found = (said > 0).float().mean()
        f1 = 2 * hits / max(mask.sum(), 1)  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: f1 = 2 * hits / mask.sum().clamp(min=1)
        logs = {"loss": loss.detach(), "f1": f1.float(), "found": found}
        return {"loss": loss, "log_vars": logs, "num_samples": len(words)}
