"""torch's process-wide numeric switches, set for a run and put back after it."""

from __future__ import annotations

from collections.abc import Callable

import torch


class BackendSettings:
    """Sets TF32, cuDNN's benchmark mode and its determinism; `undo` restores them."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set_tf32(self, enabled: bool) -> None:
        """TF32 or full fp32 in matrix products and convolutions."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if enabled else "highest")
        self._undo.append(lambda: torch.set_float32_matmul_precision(before))
        cudnn = torch.backends.cudnn
        if hasattr(cudnn, "conv"):  # torch 2.9 named a setting for each operation
            kinds = (cudnn.conv, cudnn.rnn)
            for kind in kinds:
                self._set(kind, "fp32_precision", "tf32" if enabled else "ieee")
        else:
            self._set(cudnn, "allow_tf32", enabled)

    def set_benchmark(self, enabled: bool) -> None:
        self._set(torch.backends.cudnn, "benchmark", enabled)

    def set_deterministic(self) -> None:
        self._set(torch.backends.cudnn, "deterministic", True)
        self._set(torch.backends.cudnn, "benchmark", False)

    def undo(self) -> None:
        """Everything as it was; safe twice."""
        while self._undo:
            self._undo.pop()()

    def _set(self, owner: object, name: str, value: object) -> None:
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))
