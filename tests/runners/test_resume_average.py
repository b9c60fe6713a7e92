import torch
from torch import nn

from devrun.hooks import EMAHook
from tests.support.noisy import plain_loader, runner


def averaged(resume_from=None, limit=2):
    """A run that averages, of `limit` epochs of six updates each."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    run = runner(True, limit, model=model)
    run.register_hook(EMAHook(momentum=0.1))
    if resume_from is not None:
        run.resume(resume_from)
    run.run([plain_loader(6)], [("train", 1)])
    return run


def test_an_average_that_begins_anew_is_told(tmp_path, capsys):
    half = averaged(limit=1)
    path = half.save_checkpoint(tmp_path, filename_tmpl="epoch_{}.pth")
    capsys.readouterr()
    averaged(path)
    (said,) = [line for line in capsys.readouterr().err.split("\n") if "WARN" in line]
    assert said.endswith(
        "the checkpoint has no averaged weights: EMAHook begins anew, with the trained "
        "weights in it"
    )
