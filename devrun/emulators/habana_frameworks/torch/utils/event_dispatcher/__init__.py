"""The event bus under the metrics."""

from __future__ import annotations

from habana_frameworks._emulation.bus import EventDispatcher, EventId

__all__ = ["EventDispatcher", "EventId"]
