"""`devrun compare` as a library: where two trainings part.

Each side is recorded (`recording`, into the `records` of `records`); two are laid over
each other (`partings`), and in the end the operator is looked for (`operators`).
"""

from devrun.rehearsal.compare.partings import Comparison, Parting, Trained, compare
from devrun.rehearsal.compare.records import read, write

__all__ = ["Comparison", "Parting", "Trained", "compare", "read", "write"]
