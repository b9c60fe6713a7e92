"""Distributed training: `hccl`."""

from __future__ import annotations

from habana_frameworks.torch.distributed import hccl

__all__ = ["hccl"]
