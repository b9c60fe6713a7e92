"""What `devrun check` finds of the planted faults, and says of clean programs.

`make test-corpus` tries all of them and prints the table; the suite tries a few.
"""

from __future__ import annotations

import pytest

from tests.rehearsal.corpus.corpus import DEVICES, programs, score

LEAST = 95.0
"""Of the faults of each device, in percent, those that are found at their line."""
FEW = ("faults/reads_in_forward", "clean/asks_first")


def holds(found):
    lost = sum(n for (_, place), n in found.places.items() if place == "lost")
    assert lost == 0, found.table()
    assert sum(found.alarms.values()) == 0, found.table()
    assert min(map(found.share, DEVICES)) >= LEAST, found.table()
    for device in DEVICES:
        applied, *come = (
            found.remedies[device, step] for step in ("applied", "gone", "trains")
        )
        assert come == [applied, applied], found.table()


def test_some_faults_are_found_at_their_lines_and_nothing_else():
    chosen = programs(*FEW)
    assert {one.name for one in chosen} == set(FEW)
    holds(score(chosen, at_once=1))


@pytest.mark.slow
def test_the_whole_corpus(capsys):
    found = score(programs())
    with capsys.disabled():
        print(f"\n{found.table()}")
    holds(found)
