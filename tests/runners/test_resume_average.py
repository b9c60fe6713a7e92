"""The average of an MMCV run goes on, or it is said that it begins anew."""

import pytest
import torch
from torch import nn

from devrun.hooks import EMAHook
from tests.support.noisy import plain_loader, runner, same, weights


def averaged(by_epoch, priority, resume_from=None, limit=2):
    """A run that averages, and its hook; `limit` epochs of six updates each."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    hook = EMAHook(momentum=0.1)
    run = runner(by_epoch, limit if by_epoch else 6 * limit, model=model)
    run.register_hook(hook, priority)
    if resume_from is not None:
        run.resume(resume_from)
    run.run([plain_loader(6)], [("train", 1)])
    return run, hook


@pytest.mark.parametrize("priority", ["NORMAL", "ABOVE_NORMAL"])
@pytest.mark.parametrize("by_epoch", [True, False])
def test_the_average_of_an_mmcv_file_goes_on(tmp_path, by_epoch, priority):
    half, hook = averaged(by_epoch, priority, limit=1)
    path = tmp_path / ("epoch_1.pth" if by_epoch else "iter_6.pth")
    half.save_checkpoint(tmp_path, filename_tmpl=path.name)
    content = torch.load(path, weights_only=True)
    plain = content["state_dict"]
    for name, average in hook.averaged.items():
        twin = f"ema_{name.replace('.', '_')}"
        plain[twin] = average.detach().clone()
        if by_epoch and priority == "ABOVE_NORMAL":  # MMCV saved after the exchange
            plain[name], plain[twin] = plain[twin], plain[name]
    torch.save(content, path)

    whole, expected = averaged(by_epoch, priority)
    resumed, found = averaged(by_epoch, priority, path)
    assert same(weights(resumed), weights(whole))
    assert same(found.averaged, expected.averaged)


def test_an_average_that_begins_anew_is_told(tmp_path, capsys):
    half, _ = averaged(True, None, limit=1)
    path = half.save_checkpoint(tmp_path, filename_tmpl="epoch_{}.pth")
    capsys.readouterr()
    averaged(True, None, path)
    (said,) = [line for line in capsys.readouterr().err.split("\n") if "WARN" in line]
    assert said.endswith(
        "the checkpoint has no averaged weights: EMAHook begins anew, with the trained "
        "weights in it"
    )
