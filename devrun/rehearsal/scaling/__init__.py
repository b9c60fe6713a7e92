"""What a training would take on more devices than are here.

`scaling` predicts the time of an update by formulas (`cost`, `links`) and builds one
rank of many without the others, on tensors without values, for its memory (`ranks`).
"""

from devrun.rehearsal.scaling.cost import (
    Part,
    Prediction,
    Weight,
    Work,
    predict,
)
from devrun.rehearsal.scaling.forecast import SCHEMA, RankMemory, Scaling, scaling
from devrun.rehearsal.scaling.links import Fabric, Link, fabric_of, fitted
from devrun.rehearsal.scaling.published import FABRICS

__all__ = [
    "FABRICS",
    "SCHEMA",
    "Fabric",
    "Link",
    "Part",
    "Prediction",
    "RankMemory",
    "Scaling",
    "Weight",
    "Work",
    "fabric_of",
    "fitted",
    "predict",
    "scaling",
]
