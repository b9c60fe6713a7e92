"""benchmarks/FAULTS.md names tests that exist."""

import re

from tests.faults.harness import ROOT


def test_every_named_test_is_there():
    text = (ROOT / "benchmarks" / "FAULTS.md").read_text()
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 30
    for file, name in named:
        places = [ROOT / file, ROOT / "tests" / "faults" / file]
        (path,) = [place for place in places if place.is_file()]
        assert not name or f"def {name}(" in path.read_text(), (file, name)
