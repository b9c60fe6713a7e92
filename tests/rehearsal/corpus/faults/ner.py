"""Names in sentences: a small encoder with a head for each word, in the style of Hugging Face."""

import random

import torch
from torch import nn
from torch.nn import CrossEntropyLoss
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Sentences(Dataset):
    def __init__(self, size=48, words=60, length=12, labels=5):
        self.size, self.words, self.length, self.labels = size, words, length, labels

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        ids = torch.randint(1, self.words, (self.length,), generator=draw)
        mask = (torch.arange(self.length) < 5 + index % 7).long()
        return {"input_ids": ids * mask, "attention_mask": mask, "labels": ids % self.labels}


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width)

    def forward(self, hidden, extended_mask):
        scores = self.query(hidden) @ self.key(hidden).transpose(-1, -2)
        scores = scores / hidden.shape[-1] ** 0.5 + extended_mask
        return self.norm(hidden + scores.softmax(-1) @ self.value(hidden))


@MODELS.register_module()
class ForTokenClassification(nn.Module):
    def __init__(self, words=60, labels=5, width=16, layers=2, max_length=32, layerdrop=0.1):
        super().__init__()
        self.num_labels, self.layerdrop = labels, layerdrop
        self.word_embeddings = nn.Embedding(words, width)
        self.position_embeddings = nn.Embedding(max_length, width)
        self.layers = nn.ModuleList([Layer(width) for _ in range(layers)])
        self.pooler = nn.Linear(width, width)  # fault[cpu]: no gradient
        # remedy: self.pooler = nn.Identity()
        self.classifier = nn.Linear(width, labels)

    def forward(self, input_ids, attention_mask, labels):
        # "Expected all tensors to be on the same device": discuss.pytorch.org, many threads
        position_ids = torch.arange(input_ids.shape[1], dtype=torch.long).expand_as(input_ids)  # fault[cuda]: device mismatch
        # remedy: position_ids = torch.arange(input_ids.shape[1], dtype=torch.long, device=input_ids.device).expand_as(input_ids)
        hidden = self.word_embeddings(input_ids) + self.position_embeddings(position_ids)
        extended_mask = (1.0 - attention_mask[:, None, :].float()) * -10000.0
        for layer in self.layers:
            # LayerDrop, as transformers' modeling_wav2vec2 and modeling_bart have it
            if self.training and random.uniform(0, 1) < self.layerdrop:  # fault[ipu]: once
            # remedy: if False:
                continue
            hidden = layer(hidden, extended_mask)
        logits = self.classifier(hidden)
        loss_fct = CrossEntropyLoss()
        # "only keep active parts of the loss", transformers' BertForTokenClassification before 4.10
        active_loss = attention_mask.view(-1) == 1
        active_logits = logits.view(-1, self.num_labels)[active_loss]  # fault[cuda]: host; fault[ipu]: cannot be compiled
        # remedy: active_logits = logits.view(-1, self.num_labels)
        active_labels = labels.view(-1)[active_loss]  # fault[cuda]: host; fault[ipu]: cannot be compiled
        # remedy: active_labels = labels.view(-1).masked_fill(~active_loss, -100)
        loss = loss_fct(active_logits, active_labels)
        right = (active_logits.argmax(-1) == active_labels).sum().item()  # fault[cuda]: host; fault[ipu]: cannot be compiled
        # remedy: right = (active_logits.argmax(-1) == active_labels).sum()
        return {"loss": loss, "accuracy": right / active_labels.numel()}
