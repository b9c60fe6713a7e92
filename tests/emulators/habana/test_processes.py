"""What the environment decides, and what takes more than one process."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from tests.support.zygote import free_port

PRELUDE = "import torch, habana_frameworks.torch as ht\n"
DDP = """
import torch
import torch.distributed as dist
import habana_frameworks.torch.distributed.hccl

dist.init_process_group("hccl")
rank = dist.get_rank()
total = torch.full((2,), rank + 1.0, device="hpu")
dist.all_reduce(total)
assert total.tolist() == [3, 3]
try:
    dist.all_reduce(total, op=dist.ReduceOp.AVG)
except RuntimeError as error:
    assert "Unsupported ReduceOp for HCCL process group" in str(error)
else:
    raise SystemExit("AVG was not refused")
# they find groups by name
from torch.distributed import _functional_collectives as functional
pair = dist.new_group([0, 1])
mine = torch.full((2,), rank + 1.0, device="hpu")
assert functional.all_gather_tensor(mine, 0, pair).tolist() == [1, 1, 2, 2]
assert functional.reduce_scatter_tensor(mine, "sum", 0, pair).tolist() == [3]
assert functional.all_reduce(mine, "max", pair).tolist() == [2, 2]
assert (mine + functional.all_reduce(mine, "sum", pair)).tolist() == [rank + 4.0] * 2
assert functional.broadcast(mine, 1, pair).tolist() == [2, 2]
both = functional.all_gather_into_tensor_coalesced([mine, mine + 1], pair)
assert [each.tolist() for each in both] == [[1, 1, 2, 2], [2, 2, 3, 3]]
objects = [None, None]
dist.all_gather_object(objects, {"rank": rank})
assert [o["rank"] for o in objects] == [0, 1]
dist.destroy_process_group()
"""


def test_the_environment_sets_limits_and_metrics(emulated, tmp_path):
    path = tmp_path / "metrics.json"
    code = PRELUDE + (
        "from habana_frameworks import emulator\n"
        "print(torch.hpu.get_device_name(), torch.hpu.memory_reserved())\n"
        "x = torch.ones(2, 2, device='hpu'); emulator.reset()\n"
        "for _ in range(12): x = x + 1\n"
        "print(emulator.report().totals['flush by maximal graph size'])\n"
        "torch.linalg.svdvals(x)"
    )
    settings = {
        "DEVRUN_HPU_GENERATION": "gaudi3",
        "DEVRUN_HPU_MEMORY_MB": "64",
        "PT_HPU_ENABLE_CACHE_METRICS": "1",
        "PT_HPU_MAX_COMPOUND_OP_SIZE": "5",
        "PT_HPU_METRICS_FILE": str(path),
        "PT_HPU_PLACE_ON_CPU": "none",
    }
    done = emulated(["-c", code], **settings)
    assert done.stdout.split() == ["GAUDI3", str(64 << 20), "2"]
    assert "aten::_linalg_svd is not yet supported on HPU." in done.stderr
    rows = {row["metric_name"]: row for row in json.loads(path.read_text("utf-8"))}
    compiled = rows["graph_compilation"]["statistics"]["TotalNumber"]
    assert compiled == rows["recipe_cache"]["statistics"]["TotalMiss"] > 0
    assert rows["cpu_fallback"]["triggered_by"] == "process_exit"


def test_the_list_of_operators_may_be_given(emulated, tmp_path):
    listed = tmp_path / "ops.txt"
    listed.write_text("# mine\nadd.Tensor\n", encoding="utf-8")
    code = (  # in eager mode `import torch` loads the device by itself
        "import shutil, torch\n"
        "x = torch.ones(2, device='hpu'); (x + x).exp()\n"
        "import habana_frameworks.torch as ht\n"
        "print(ht.utils.debug._get_fallback_op_count(), shutil.which('hl-smi'))"
    )
    settings = {"DEVRUN_HPU_OPS": str(listed), "PT_HPU_LAZY_MODE": "0"}
    done = emulated(["-c", code], imports_torch=True, **settings)
    assert "'aten::exp': 1" in done.stdout and "add" not in done.stdout
    assert "hl-smi" in done.stdout


def test_an_unknown_mode_is_refused(emulated):
    done = emulated(["-c", PRELUDE], PT_HPU_LAZY_MODE="3")
    assert "PT_HPU_LAZY_MODE=3: the emulator knows 1 (lazy) and 0" in done.stderr


def test_two_processes_over_hccl(emulated, tmp_path):
    script = tmp_path / "ddp.py"
    script.write_text(DDP, encoding="utf-8")
    common = {"MASTER_ADDR": "localhost", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}

    def rank(number):  # with what launchers set
        local = {"RANK": str(number), "LOCAL_RANK": str(number)}
        return emulated([str(script)], **common, **local)

    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(rank, range(2)):
            assert done.returncode == 0, done.stderr


def test_a_training_written_for_cuda_is_migrated_and_logged(emulated, tmp_path):
    script = Path(__file__).with_name("migrated.py")
    settings = {
        "PT_HPU_LAZY_MODE": "0",
        "PT_HPU_GPU_MIGRATION": "1",
        "GPU_MIGRATION_LOG_LEVEL": "2",
        "HABANA_LOGS": str(tmp_path),
    }
    done = emulated([str(script), str(tmp_path)], **settings)
    assert done.returncode == 0, done.stderr
    (log,) = (tmp_path / "gpu_migration_logs").glob("gpu_migration_*.log")
    said = log.read_text("utf-8")
    line = next(
        number
        for number, text in enumerate(script.read_text("utf-8").splitlines(), 1)
        if text.startswith("torch.cuda.synchronize")
    )
    assert f"{script}:{line}\n    [context]: torch.cuda.synchronize()\n" in said
    assert "[hpu_match]: torch.cuda.synchronize() --> torch.hpu.synchronize" in said
    assert "[hpu_mismatch]: torch.cuda.empty_cache() --> nothing" in said
    assert "[hpu_modified]: torch.cuda.set_device(3)" in said


def test_another_torch_or_a_stock_one_in_lazy_mode_may_be_rehearsed(emulated):
    here = torch.__version__
    done = emulated(["-c", PRELUDE], DEVRUN_HPU_TORCH="1.2")
    assert f"version 1.2 differs from run-time {here}" in done.stderr
    done = emulated(["-c", PRELUDE], DEVRUN_HPU_TORCH=here)
    assert "is not supported in Lazy mode" in done.stderr
