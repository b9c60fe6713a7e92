"""What takes a process of its own: several ranks, the contract, an SDK that is not."""

from pathlib import Path

import pytest
import torch

from tests.hpu.runs import train, weights

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "configs/digits/resnet8_digits.yaml"
CONTRACT = """
from devrun.testing import AdapterConformance

class TestGaudi(AdapterConformance):
    device = {device!r}
"""
WORKER = """
import sys, torch
from torch import nn
from tests.hpu.runs import MODE, device, loader, make, net, weights
MODE["mode"] = "lazy"
rank_of = torch.distributed.get_rank
runner, losses = make(device(graphs=True), epochs=2, optimizer=torch.optim.AdamW)
size = 4 // runner.world_size
runner.run([loader(batch_size=size)], [("train", 1)])
ddp = runner.session.wrapped
assert type(ddp).__name__ == "DistributedDataParallel"
assert ddp.gradient_as_bucket_view and not ddp.broadcast_buffers
assert ddp.device_ids is None and ddp.bucket_bytes_cap == 256 * 2**20
assert torch.distributed.get_backend_config() == "cpu:gloo,hpu:hccl"
if runner.rank == 0:
    torch.save(weights(runner), sys.argv[1])
runner.close()
"""


def test_two_processes_over_hccl_train_as_one_on_the_cpu(python, tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER, encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = python([*launcher, worker, tmp_path / "two.pt"])
    assert done.returncode == 0, done.stderr[-4000:]
    two = torch.load(tmp_path / "two.pt")
    alone, _ = train("cpu", optimizer=torch.optim.AdamW)
    for name, value in weights(alone).items():
        torch.testing.assert_close(two[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "mode",
    [
        "lazy",
        pytest.param("eager", marks=pytest.mark.slow),
        pytest.param("compile", marks=pytest.mark.slow),
    ],
)
def test_the_contract_of_all_devices(python, tmp_path, mode):
    device = {"type": "hpu", "emulate": True, "mode": mode}
    suite = tmp_path / "test_contract.py"
    suite.write_text(CONTRACT.format(device=device), encoding="utf-8")
    alone = ["-k", "not several"]  # see above for two
    done = python(["-m", "pytest", suite, "-q", "-p", "no:cacheprovider", *alone])
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout


def sdk(folder, torch_init):
    """A package that stands for an SDK which cannot be used here."""
    package = folder / "habana_frameworks" / "torch"
    for each in (package.parent, package, package / "core", package / "hpex"):
        each.mkdir(parents=True)
        (each / "__init__.py").write_text("", encoding="utf-8")
    (package / "__init__.py").write_text(torch_init, encoding="utf-8")
    for name in ("movingavrg", "normalization", "optimizers"):
        (package / "hpex" / f"{name}.py").write_text("", encoding="utf-8")
    return folder


NO_DEVICE = "class hpu:\n    is_available = staticmethod(lambda: False)\n"
BUSY = """
class hpu:
    is_available = staticmethod(lambda: True)
    def init():
        raise RuntimeError("synStatus=8 [Device not found] Device acquire failed.")
"""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("assert False, 'torch 2.9 is required'", "refuses torch"),
        pytest.param(NO_DEVICE, "sees no Gaudi; check", marks=pytest.mark.slow),
        (BUSY, "no Gaudi is free (synStatus=8"),
        ("raise RuntimeError('PT_X=9: no.')", "does not start: PT_X=9: no; check"),
    ],
    ids=["other torch", "no device", "no free device", "bad variable"],
)
def test_an_sdk_that_cannot_be_used_is_one_line(python, tmp_path, source, words):
    code = (
        "from devrun.devices.resolve import resolve_device\n"
        "from devrun.errors import DeviceUnavailableError\n"
        "try:\n    resolve_device('hpu').setup(None)\n"
        "except DeviceUnavailableError as error:\n    print(error)\n"
    )
    done = python(["-c", code], paths=[sdk(tmp_path, source)])
    assert words in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("\n") == 1


def test_without_the_sdk_status_9_says_how_to_get_it(python, tmp_path):
    command = [ROOT / "tools/train.py", DIGITS, "--work-dir", tmp_path / "run"]
    done = python([*command, "--device", "hpu"])
    assert done.returncode == 9
    (line,) = done.stderr.splitlines()
    assert "install Intel Gaudi software" in line and "--emulate" in line


@pytest.mark.slow
def test_too_little_memory_is_status_6(python, tmp_path):
    command = [ROOT / "tools/train.py", DIGITS, "--work-dir", tmp_path / "run"]
    options = ["--device", "hpu", "--emulate", "--no-progress"]
    done = python([*command, *options], DEVRUN_HPU_MEMORY_MB="2")
    assert done.returncode == 6, done.stderr
    last = done.stderr.splitlines()[-1]
    # the evaluation has larger batches than an update, and is tried first
    said = "out of memory on hpu with 256 samples in a batch of the evaluation"
    assert last.startswith(f"devrun: error: {said}")
    assert "data.val_dataloader.samples_per_gpu" in last


def test_variables_reach_the_sdk(python, tmp_path):
    code = (
        "import torch, sys\n"
        "from devrun.devices.resolve import resolve_device\n"
        "adapter = resolve_device({'type': 'hpu', 'emulate': True, 'mode': 'lazy'})\n"
        "adapter.setup(None)\n"
        "x = torch.ones(2, 2, device='hpu')\n"
        "print(torch.hpu.get_device_name(), torch.hpu.memory_reserved())\n"
        "from habana_frameworks import emulator\n"
        "for _ in range(12): x = x + 1\n"
        "net = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "from devrun.errors import UnsupportedFeatureError\n"
        "from devrun.step import UpdatePolicy\n"
        "try: adapter.prepare(net, optimizer, UpdatePolicy(precision='fp16'))\n"
        "except UnsupportedFeatureError as error: print(error)\n"
        "print(emulator.report().totals['flush by maximal graph size'] > 1)\n"
    )
    switches = {"PT_HPU_MAX_COMPOUND_OP_SIZE": "5", "DEVRUN_HPU_MEMORY_MB": "64"}
    done = python(["-c", code], DEVRUN_HPU_GENERATION="gaudi", **switches)
    printed = done.stdout.splitlines()[-3:]
    assert printed[0] == f"GAUDI {64 << 20}", done
    assert "'fp16' needs a Gaudi 2" in printed[1] and printed[2] == "True"
