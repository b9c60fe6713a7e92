# %%
import pandas as pd
import torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

images = torch.randn(256, 16)
data = TensorDataset(images, images[:, :4].argmax(1))
model = nn.Linear(16, 4)


# %%
class Training(BaseModel):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images, labels, mode):
        output = self.model(images)
        if mode == "loss":
            return {"loss": nn.functional.cross_entropy(output, labels)}
        return output, labels


class Accuracy(BaseMetric):
    def process(self, data_batch, data_samples):
        output, labels = data_samples
        right = (output.argmax(1) == labels).sum().item()
        self.results.append({"right": right, "count": len(labels)})

    def compute_metrics(self, results):
        count = sum(one["count"] for one in results)
        return {"accuracy": sum(one["right"] for one in results) / count}


runner = Runner(
    model=Training(model),
    work_dir="out",
    train_dataloader=DataLoader(data, 32, shuffle=True),
    val_dataloader=DataLoader(data, 32),
    train_cfg={"by_epoch": True, "max_epochs": 2},
    val_cfg={},
    val_evaluator=[Accuracy()],
    optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.5}},
    default_hooks={"logger": {"type": "LoggerHook", "interval": 2}},
)
runner.train()
# %%
metrics = pd.read_json(f"{runner.log_dir}/vis_data/scalars.json", lines=True)
metrics[["step", "loss"]].dropna().plot(x="step", y="loss")
# %%
metrics[["step", "accuracy"]].dropna()
