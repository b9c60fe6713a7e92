"""A tagger: a recurrent net with a CRF on top."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Sentences(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        n = 4 + index % 5
        words = torch.zeros(8, dtype=torch.long)
        words[:n] = torch.randint(1, 20, (n,), generator=draw)
        return {"words": words, "tags": words % 3, "lengths": n}


class CRF(nn.Module):
    def __init__(self, tags=3):
        super().__init__()
        self.start = nn.Parameter(torch.zeros(tags))
        self.trans = nn.Parameter(torch.zeros(tags, tags))

    def partition(self, scores, mask):
        alpha = self.start + scores[:, 0]
        for t in range(1, scores.size(1)):
            later = (alpha[:, :, None] + self.trans + scores[:, t, None]).logsumexp(1)
            if mask[:, t].any():  # fault[cuda]: host sync
                # remedy: if True:
                alpha = torch.where(mask[:, t, None], later, alpha)
        return alpha.logsumexp(1)

    def path(self, scores, tags, mask):
        total = torch.zeros(len(tags))  # fault[cuda]: device mismatch
        # remedy: total = torch.zeros(len(tags), device=tags.device)
        total = total + scores[:, 0].gather(1, tags[:, :1]).squeeze(1)
        for t in range(1, scores.size(1)):
            step = self.trans[tags[:, t - 1], tags[:, t]] + scores[:, t].gather(1, tags[:, t : t + 1]).squeeze(1)
            total = total + step * mask[:, t]
        return total

    def decode(self, scores):
        best, back = self.start + scores[:, 0], []
        for t in range(1, scores.size(1)):
            best, where = (best[:, :, None] + self.trans).max(1)
            best = best + scores[:, t]
            back.append(where)
        last = best.argmax(1).tolist()  # fault[cuda]: .tolist()
        # remedy: last = best.argmax(1)
        return last


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8, padding_idx=0)
        self.rnn = nn.LSTM(8, 8, bidirectional=True, batch_first=True)
        self.out = nn.Linear(16, 3)
        self.crf = CRF()

    def encode(self, words, lengths):
        packed = pack_padded_sequence(self.words(words), lengths, batch_first=True)  # fault[cpu,cuda]: raises; fault[cuda]: lengths
        # remedy: packed = pack_padded_sequence(self.words(words), lengths.cpu(), batch_first=True, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=words.size(1))
        return self.out(h)

    def hit_rate(self, scores, tags, mask):
        right = scores.argmax(2)[mask] == tags[mask]  # fault[cuda]: host sync
        # remedy: right = (scores.argmax(2) == tags) | ~mask
        return right.float().mean()

    def forward(self, words, tags, lengths):
        scores = self.encode(words, lengths)
        mask = words > 0
        loss = (self.crf.partition(scores, mask) - self.crf.path(scores, tags, mask)).mean()
        self.said = self.crf.decode(scores.detach())
        return {"loss": loss, "log_vars": {"loss": loss.detach(), "hits": self.hit_rate(scores, tags, mask)}}
