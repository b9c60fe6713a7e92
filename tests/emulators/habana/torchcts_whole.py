"""TorchCTS on the emulated Gaudi, whole; fails where a failure has no known reason.

    PYTHONPATH=devrun/emulators python tests/emulators/habana/torchcts_whole.py run ...

What makes a run of thousands of tests slow is taken out: collecting walks the call
stack for each sample, and each result writes all of them.
"""

from __future__ import annotations

import re
import sys
from collections import Counter

import pytest
import torch.testing._internal.common_utils as common
from torchcts import cli, op_metadata

common.extract_test_fn = lambda: None
_known = {}
_validated = op_metadata._validation_metadata


def _once(metadata: object) -> object:
    if id(metadata) not in _known:
        _known[id(metadata)] = metadata, _validated(metadata)
    return _known[id(metadata)][1]


REASONS = {
    "compressed sparse layouts, which the device lacks": r"sparse\.(mm|sampled_addmm)",
    "torch wants the places to split at on the host": r"tensor_split",
    "the device keeps 64-bit types in 32 bits, and refuses values beyond": r"kthvalue|"
    r"masked\.(argm|logsumexp-torch\.int64)|_safe_softmax.*float64|ldexp_wide|multinomial",
    "values of PyTorch's CPU kernels": r"\bi0\b|logit_backward_negative|polygamma|"
    r"gcd_signed_minimum|igamma_tiny|strided_extrema|grid_sample|soft_margin_loss|"
    r"matrix_exp|histc_casts|_segment_reduce|addbmm|im2col_col2im_out_input",
    "PyTorch has no kernel for a plug-in, or refuses the mix": r"kaiser|vander_decr|"
    r"test_batch_norm\[dtype|group_norm_bias_only",
    "PyTorch reads host memory, which is refused": r"_saturate_weight_to_fp16",
    "it adds to memory that it is given uninitialised": r"low_level_misc_dispatcher",
    "a tensor subclass is asked for singular vectors too": r"has_inf-.*matrix_rank",
    "PyTorch's CPU has no such kernel": r"_attention_forward|_product_.*attention|"
    r"batch_norm_(stats|elemt)|_resize_output",
    "only host memory can be pinned": r"_pin_memory",
    "the suite wants six parts where CUDA's kernel has five": r"_thnn_fused_gru_cell",
    "overloads that this torch does not have": r"\.names_out",
}
"""Why a test may fail -> its name; all of them are looked into in EMULATORS.md."""


def reason_of(test: str) -> str | None:
    return next((why for why, name in REASONS.items() if re.search(name, test)), None)


class Whole:
    """The results are written when the run is over, and its failures told apart."""

    def __init__(self) -> None:
        self.failed: Counter[str] = Counter()
        self.unexplained: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        why = reason_of(report.nodeid.rpartition("/")[2])
        if why is None or report.when != "call":
            self.unexplained.append(report.nodeid)
        else:
            self.failed[why] += 1

    def pytest_collection_finish(self, session):
        plugins = session.config.pluginmanager.get_plugins()
        (self.suite,) = (p for p in plugins if hasattr(p, "flush_results_to_disk"))
        self.write = self.suite.flush_results_to_disk
        self.suite.flush_results_to_disk = lambda: None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self):
        self.suite.flush_results_to_disk = self.write

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: object) -> None:
        for why, count in self.failed.most_common():
            sys.stdout.write(f"{count} failed: {why}\n")
        for test in self.unexplained:
            sys.stdout.write(f"failed without a known reason: {test}\n")


def _whole(args: list[str]) -> int:
    whole = Whole()
    status = int(_main(args, plugins=[whole]))
    explained = whole.failed and not whole.unexplained
    return 0 if explained and status == pytest.ExitCode.TESTS_FAILED else status


op_metadata._validation_metadata = _once
_main = pytest.main
pytest.main = _whole
if __name__ == "__main__":
    sys.argv[0] = "torchcts"
    sys.exit(cli.main())
