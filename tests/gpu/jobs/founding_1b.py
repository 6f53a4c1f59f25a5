"""Job e: what pretokenizing buys at 1 billion parameters, compiled, padded and packed."""

from __future__ import annotations

from tests.gpu.jobs.studies import add_comparisons, add_figures, attempt, run_scenario, with_even_documents
from tests.gpu.lease.place import Place

BLOCKS = 5
MOST_HALF_WIDTH = 1.0  # percent


def run(place: Place) -> None:
    founding(place, "founding-1b")


def founding(place: Place, scenario: str) -> None:
    """Run a founding study and record its figures, the verdicts first."""
    study = run_scenario(place, scenario, *with_even_documents())
    if study is not None:
        with attempt(place, "verdicts"):
            add_comparisons(place, study, MOST_HALF_WIDTH)
        with attempt(place, "speeds"):
            add_figures(place, study, BLOCKS)
