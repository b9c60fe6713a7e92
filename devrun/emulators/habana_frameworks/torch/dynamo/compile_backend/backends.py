"""The backends by name."""

from __future__ import annotations

from habana_frameworks._emulation.compiling import hpu_backend

__all__ = ["hpu_backend"]
