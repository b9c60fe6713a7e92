"""A student that learns from a teacher, on one Gaudi; the best model is loaded again."""

import os
import tempfile

import habana_frameworks.torch.core as htcore
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("hpu")


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, width), nn.ReLU())
        self.norm = nn.LayerNorm(width)
        self.register_buffer("bias", torch.zeros(3))
        self.outer = nn.Linear(width, 3)

    def forward(self, x):
        return self.outer(self.norm(self.inner(x))) + self.bias


def train(student, file):
    teacher = Net(32).eval()  # fault[hpu]: device mismatch
    # remedy: teacher = Net(32).eval().to(device)
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 1.0]))  # fault[hpu]: mismatch
    # remedy: criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 1.0])).to(device)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(40, 6), torch.randint(0, 3, (40,)))
    for x, y in DataLoader(data, 8, shuffle=True):
        x, y = x.to(device), y.to(device)
        with torch.no_grad():
            soft = F.softmax(teacher(x), -1)
        made = student(x)
        loss = criterion(made, y) + F.kl_div(F.log_softmax(made, -1), soft)
        optimizer.zero_grad()
        loss.backward()
        htcore.mark_step()
        optimizer.step()
        htcore.mark_step()
    torch.save(student, file)


def judge(file):
    student = torch.load(file, weights_only=False)  # fault[hpu]: device mismatch
    # remedy: student = torch.load(file, weights_only=False).to(device)
    return student(torch.randn(4, 6).to(device)).argmax(-1).cpu()


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "best.pt")
    train(Net(8).to(device), path)
    print(judge(path))
