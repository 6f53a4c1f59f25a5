"""The section on stacks: names what it should, in markdown that holds."""

from __future__ import annotations

from dataclasses import replace

from harness.explain.probes.samples import explain
from harness.show.profile import stacks_section
from harness.study.traces.py_spy import FittedClock
from tests.harness.explain.probes.test_stacks import CLOCK, ENCODE, FACTS, LOOP, WAIT, samples_table, spans_table

SPANS = [("main", "fetch", 0, 400), ("main", "forward", 400, 900), ("loader-0", "tokenize", 0, 700)]


def report(clock=CLOCK, facts=FACTS):
    rows = [(10 * k + 5, "main", ["main (a.py:1)", *[LOOP] * 4, WAIT]) for k in range(100)]
    rows += [(10 * k + 5, "loader-0", [LOOP, ENCODE] if k < 70 else [WAIT]) for k in range(100)]
    return explain(samples_table(rows, clock), spans_table(SPANS), facts)


def test_it_names_the_tokenizer_and_links_the_files():
    text = stacks_section(
        {"text": report()}, {"text": ["runs/text+profiled/0/log.txt", "runs/text+profiled/0/stacks.svg"]}
    )
    assert "[Flame graph of what ran](runs/text+profiled/0/stacks.svg)." in text  # and no link to what is not there
    assert "speedscope" not in text
    assert "Tokenizing took the most samples of the loader workers: 70%" in text
    assert "`encode_batch (trainer/data/tokenizers.py)`" in text
    assert "30 samples (30 %) of the loader workers in no stage" in text
    assert "100 readings of 100 asked for" in text
    assert "agree on the offset of py-spy's clock, 9 in 10 to 0.50 ms" in text


def test_a_deep_stack_is_cut_at_its_outer_end_and_every_row_has_its_columns():
    lines = stacks_section({"a": report()}, {}).splitlines()
    line = next(line for line in lines if "main thread: fetch | … " in line)
    assert line.count(" → ") == 4
    assert line.split(" | ")[1].endswith(f"`{WAIT}`")
    assert {line.replace("\\|", "").count("|") for line in lines if line.startswith("|")} == {7, 4}


def test_a_rough_place_says_so_in_its_rows_and_others_do_not():
    late = FittedClock(0, 500_000, 150_000_000, 24, 22)
    rows = stacks_section({"a": report(late)}, {}).splitlines()
    said = [row.split(" | ")[0] for row in rows if row.startswith("| main thread: ")]
    assert said == [
        "| main thread: forward, rough: 30 of 50 samples within the clock's 150 ms of a boundary",
        "| main thread: fetch, rough: 30 of 40 samples within the clock's 150 ms of a boundary",
        "| main thread: no phase, rough: 10 of 10 samples within the clock's 150 ms of a boundary",
        "| main thread: forward, rough",
        "| main thread: fetch, rough",
        "| main thread: no phase, rough",
    ]
    assert ", rough" not in stacks_section({"a": report()}, {})


def test_a_long_name_is_cut_and_its_file_is_not():
    mangled = f"_RINv{'tokenizer' * 40} (tokenizers/tokenizers.abi3.so)"
    rows = [(10 * k + 5, "main", [LOOP, mangled]) for k in range(100)]
    text = stacks_section({"a": explain(samples_table(rows), spans_table(SPANS), replace(FACTS, native=True))}, {})
    shown = [cell for row in text.splitlines() for cell in row.split("`") if cell.startswith("_RINv")]
    assert len(shown) == 6
    assert all(cell.endswith("… (tokenizers/tokenizers.abi3.so)") and len(cell) < 110 for cell in shown)


def test_late_samples_and_locks_are_told():
    late = FittedClock(0, 500_000, 20_000_000, 24, 22)
    text = stacks_section({"a": report(late, replace(FACTS, gil=True))}, {})
    assert "22 of 24 edges of clock marks agree on the offset of py-spy's clock, 9 in 10 to 20.0 ms" in text
    assert "Python's lock" in text
    empty = explain(samples_table([]), spans_table(SPANS), FACTS)
    assert stacks_section({"a": empty}, {}) == stacks_section({}, {}) == ""
