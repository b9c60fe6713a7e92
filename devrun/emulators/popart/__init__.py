"""The enumerations of PopART's Python module that PopTorch programs pass as options.

Nothing else of PopART is here: an emulated run has no PopART graph.
"""

from __future__ import annotations

import enum


class AccumulateOuterFragmentSchedule(enum.IntEnum):
    """When weight updates are scheduled."""

    Scheduler = 0
    Serial = 1
    OverlapCycleOptimized = 2
    OverlapMemoryOptimized = 3


class SubgraphCopyingStrategy(enum.IntEnum):
    """When the inputs and outputs of a subgraph are copied."""

    OnEnterAndExit = 0
    JustInTime = 1


class RecomputationType(enum.IntEnum):
    """What is computed again in the backward pass."""

    NoRecompute = 0
    Standard = 1
    NormOnly = 2
    Pipeline = 3
    RecomputeAll = 4


class SyntheticDataMode(enum.IntEnum):
    """What replaces the host's data."""

    Off = 0
    Zeros = 1
    RandomNormal = 2
    RandomUniform = 3
