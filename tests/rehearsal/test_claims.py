"""The ratios that articles state, recomputed where they give the numbers."""

from pathlib import Path

import pytest
import yaml

from devrun.rehearsal.report.figures import Rates, cost, ratio

FILE = Path(__file__).parents[2] / "benchmarks" / "claims.yaml"
CLAIMS = yaml.safe_load(FILE.read_text())


def cost_of(hours, **rates):
    return cost(3600 * hours, Rates(**rates))


@pytest.mark.parametrize(
    "claim", [c for c in CLAIMS if "given" in c], ids=lambda c: c["claim"]
)
def test_a_claim_is_what_its_numbers_give(claim):
    given = claim["given"]
    found = ratio(cost_of(**given["baseline"]), cost_of(**given["system"]))
    # as precise as the article states it
    assert getattr(found, given["of"]) == pytest.approx(claim["ratio"], abs=0.005)


def test_every_claim_says_what_was_compared_and_how():
    assert {5.27, 1.76, 2.6, 18, 13} <= {claim["ratio"] for claim in CLAIMS}
    for claim in CLAIMS:
        assert {"claim", "ratio", "system", "baseline", "measured"} <= set(claim)
