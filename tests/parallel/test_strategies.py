"""Each strategy on two real processes over gloo, against one with the whole batch."""

from pathlib import Path

import pytest

from tests.parallel.worker import averaged, scaled, train
from tests.support.near import assert_near
from tests.support.ranks import found_by

SCRIPT = Path(__file__).with_name("worker.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return found_by(SCRIPT, tmp_path_factory.mktemp("ranks"))[0]


@pytest.fixture(scope="module")
def alone():
    return train()


def assert_same(found, alone):
    """The same losses, and the same weights as far as this process has them."""
    assert_near(found["losses"], alone["losses"])
    mine = {name: v for name, v in found["weights"].items() if v is not None}
    assert_near(mine, {name: alone["weights"][name] for name in mine})


@pytest.mark.parametrize(
    "how", ["plain", "static", "static accumulated", "accumulated", "pieces"]
)
def test_ddp_trains_as_one_process(ranks, alone, how):
    for found in ranks:
        assert_same(found["ddp"][how], alone)


@pytest.mark.parametrize(
    "how",
    [
        "plain",
        "accumulated",
        "given up",
        "kept",
        "offloaded",
        "pieces",
        "hybrid",
        "recomputed",
    ],
)
def test_fsdp_trains_as_one_process(ranks, alone, how):
    for found in ranks:
        assert_same(found["fsdp"][how], alone)
    names = ranks[1]["fsdp"][how]["weights"].values()
    assert all(values is None for values in names)  # rank 0 alone has whole ones


@pytest.mark.parametrize("how", ["fsdp", "accumulated"])
def test_a_parameter_of_no_dimension_trains_under_fsdp(ranks, how):
    wanted = scaled(None)
    for rank in ranks:
        assert_near(rank["scaled"][how]["losses"], wanted["losses"])
        assert_near(rank["scaled"][how]["scale"], wanted["scale"])


def test_batch_norms_are_synchronized_where_torch_can(ranks):
    assert ranks[1]["synced"] == "SyncBatchNorm"


def test_an_update_exchanges_no_more_than_it_must(ranks):
    """One message counts the targets, one judges the loss, which an update divided by
    `micro_batch` does too.

    Of the model's two blocks and its rest FSDP gathers three in each forward pass and
    two in each backward pass, and scatters three gradients at the end.
    """
    gathers, scatters = "allgather_base", "reduce_scatter_base"
    assert ranks[0]["exchanges"] == {
        "ddp 1": {"allreduce": 1 + 2},
        "ddp 3": {"allreduce": 1 + 2},
        "ddp pieces": {"allreduce": 1 + 2},
        "fsdp 1": {gathers: 5, scatters: 3, "allreduce": 1 + 2},
        "fsdp 3": {gathers: 15, scatters: 3, "allreduce": 1 + 2},
        "fsdp pieces": {gathers: 15, scatters: 3, "allreduce": 1 + 2},
    }


def test_fsdp_in_bf16_gathers_bf16_and_keeps_fp32(ranks, alone):
    assert ranks[0]["fsdp"]["bf16"]["losses"] == pytest.approx(
        alone["losses"], abs=2e-3
    )
    assert ranks[0]["fsdp"]["bf16"]["losses"] != alone["losses"]


@pytest.mark.parametrize(
    ("how", "update"),
    [
        ("skipping", {"nonfinite": "skip", "grad_clip": None}),
        ("by value", {"grad_clip": {"clip_value": 0.01}}),
    ],
)
def test_gradients_that_are_spread_are_judged_and_clipped_together(ranks, how, update):
    assert_same(ranks[0]["fsdp"][how], train(update=update))


def test_batch_norms_train_and_share_their_statistics_as_under_ddp(ranks):
    ddp, fsdp = ranks[0]["norms"]["ddp"], ranks[0]["norms"]["fsdp"]
    assert_near(fsdp["losses"], ddp["losses"])
    assert_near(fsdp["mean"], ddp["mean"])
    low = ranks[0]["norms"]["fsdp bf16"]
    assert low["losses"] == pytest.approx(ddp["losses"], abs=5e-3)


@pytest.mark.parametrize("how", ["plain", "accumulated", "own plan"])
def test_tensor_parallel_trains_as_one_process(ranks, alone, how):
    for found in ranks:
        assert_same(found["tensor"][how], alone)


def test_tensor_parallel_in_bf16_and_of_a_vision_transformer(ranks, alone):
    found = ranks[0]["tensor"]
    assert found["bf16"]["losses"] == pytest.approx(alone["losses"], abs=2e-3)
    assert_near(found["vit"], found["vit alone"])


def test_dropout_is_alike_on_all_and_the_same_when_recomputed(ranks):
    found = [rank["tensor"] for rank in ranks]
    assert found[0]["unseeded"] == found[1]["unseeded"]
    assert found[0]["dropped"] != found[0]["plain"]
    assert_same(found[0]["dropped again"], found[0]["dropped"])
    assert found[0]["dropped"]["losses"] == found[1]["dropped"]["losses"]


def test_a_resume_checks_a_share_on_each_process_and_all_learn_of_damage(ranks):
    """Rank 1 checks the second file, and rank 0 would not find this."""
    file = "shard-00002-model-00001-of-00001.safetensors"
    line = f"'PATH': {file} is damaged: its sha256 does not match"
    said = [rank["saved"]["damaged"] for rank in ranks]
    assert said == [f"rank 1: {line}", line]


def test_a_file_in_mmcvs_layout_holds_whole_weights_and_moments(ranks):
    trained, *others = ranks[0]["saved"]["one file"]
    assert len(others) == 3
    assert all(other == trained for other in others)


@pytest.mark.parametrize(
    "how",
    ["fsdp", "fsdp to ddp", "ddp to fsdp", "fsdp to tensor", "tensor to ddp"],
)
def test_a_run_goes_on_under_any_strategy(ranks, tmp_path, how):
    """With EMA, and an evaluation of 5 samples, 3 and 2 a process."""
    alone = averaged(tmp_path, None)
    for rank in ranks:
        whole, resumed = rank["saved"][how], rank["saved"][f"{how} resumed"]
        assert_near(whole["losses"], alone["losses"])
        assert_near(whole["evaluated"], alone["evaluated"])
        assert whole["predicted"] == resumed["predicted"] == alone["predicted"]
        assert_near(resumed["losses"], alone["losses"][2:])
        assert_near(resumed["evaluated"], alone["evaluated"][1:])


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("fp16", "cannot be combined with precision fp16; use bf16 or fp32"),
        ("auto", "cannot be combined with micro_batch: auto"),
        ("own hook", "cannot be combined with an optimizer hook of your own"),
        ("own step", "train_step updates the weights itself"),
        ("few", "process 1 has no sample of the evaluation set"),
        ("wrap", "wrap names 'Blok'"),
    ],
)
def test_what_fsdp_cannot_honour_is_one_line(ranks, what, words):
    for found in ranks:
        assert words in found["refused by fsdp"][what]
        assert "\n" not in found["refused by fsdp"][what]


def test_an_emulated_gaudi_trains_as_the_cpu(ranks, alone):
    for found in ranks:
        assert_same(found["gaudi"]["fsdp"], alone)
        assert_same(found["gaudi"]["tensor"], alone)
        assert "fused optimizers; set fused: false" in found["gaudi"]["fused"]
        assert "\n" not in found["gaudi"]["fused"]
        assert found["gaudi"]["fast"] == "nothing"  # that was in the way


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("plan", "plan has 'h.*.atn.c_attn', which matches nothing"),
        ("style", "h.*.mlp.c_fc must be one of colwise, rowwise, qkv, got"),
        ("heads", "mesh tensor 2 does not divide the 3 heads of h.0.attn.c_attn"),
        ("width", "mesh tensor 2 does not divide the 5 outputs of net.0"),
        ("no plan", "needs a plan, which Odd does not bring"),
        ("ddp", "type ddp keeps whole weights on each process"),
        ("sampler", "DistributedSampler divides the samples over 2 processes, of"),
        ("batch", "mesh {tensor: 4} is for a multiple of 4 processes, there are 2"),
    ],
)
def test_what_does_not_divide_is_one_line(ranks, what, words):
    for found in ranks:
        assert words in found["refused by tensor"][what]
        assert "\n" not in found["refused by tensor"][what]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("mesh", "mesh {shard: 3} is for a multiple of 3 processes, there are 2"),
        ("ddp shards", "type ddp keeps whole weights"),
        ("none", "type none is for 1 process, there are 2"),
        ("option", "static_graph is for type ddp; type fsdp cannot honour it"),
        ("offload", "offload is for type fsdp; type ddp cannot honour it"),
        ("key", "parallel.tipe: unknown key; did you mean 'type'?"),
        ("sync_bn", "sync_bn needs GPUs"),
    ],
)
def test_what_cannot_be_is_one_line(ranks, what, words):
    for found in ranks:
        assert words in found["refused"][what]
        assert "\n" not in found["refused"][what]
