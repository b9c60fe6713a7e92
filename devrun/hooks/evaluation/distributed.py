"""`DistEvalHook`: MMCV's name and arguments for evaluation on several ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from devrun.hooks.evaluation.hook import EvalHook
from devrun.registry import HOOKS
from devrun.run import Run


@HOOKS.register_module()
class DistEvalHook(EvalHook):
    """`EvalHook`, which itself works on several ranks, with MMCV's extra arguments.

    Args:
        broadcast_bn_buffer: all ranks evaluate with the BatchNorm statistics of rank 0.
        tmpdir, gpu_collect: passed on to `test_fn`; not needed otherwise.
    """

    def __init__(
        self,
        dataloader: Any,
        *args: Any,
        broadcast_bn_buffer: bool = True,
        tmpdir: str | None = None,
        gpu_collect: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(dataloader, *args, **kwargs)
        self.broadcast_bn_buffer = broadcast_bn_buffer
        self.tmpdir = tmpdir
        self.gpu_collect = gpu_collect

    def _call_test_fn(self, runner: Run, test_fn: Callable[..., Any]) -> Any:
        loader = runner.prepare_eval_loader(self.dataloader)
        return test_fn(
            runner.model, loader, tmpdir=self.tmpdir, gpu_collect=self.gpu_collect
        )
