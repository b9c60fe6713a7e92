# %%
import lightning as L
import pandas as pd
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

images = torch.randn(256, 16)
data = TensorDataset(images, images[:, :4].argmax(1))
model = nn.Linear(16, 4)


# %%
class Training(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model, self.loss = model, nn.CrossEntropyLoss()
        self.accuracy = MulticlassAccuracy(4, average="micro")

    def training_step(self, batch, index):
        loss = self.loss(self.model(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        self.accuracy(self.model(batch[0]), batch[1])
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self):
        return optim.SGD(self.parameters(), 0.5)


trainer = L.Trainer(max_epochs=2, log_every_n_steps=2, logger=CSVLogger("out"))
trainer.fit(Training(model), DataLoader(data, 32, shuffle=True), DataLoader(data, 32))
# %%
metrics = pd.read_csv(f"{trainer.logger.log_dir}/metrics.csv")
metrics[["step", "loss"]].dropna().plot(x="step", y="loss")
# %%
metrics[["step", "accuracy"]].dropna()
