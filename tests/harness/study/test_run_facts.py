"""What a run tells about itself: read by name and type, and written as it was, whatever version recorded it."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from harness.study.records import NAMES, RunFacts, RunRecord
from harness.study.run_data import RunData
from harness.study.store import StudyFolder, write_json

TESTS = Path(__file__).parents[2]
QUICKSTART = TESTS.parent / "results" / "reference" / "quickstart"
STUDIES = [*sorted(path.parent for path in TESTS.glob("fixtures/studies/*/study.json")), QUICKSTART]


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
def test_every_reference_study_opens_and_is_written_as_it_was_read(study: Path, tmp_path: Path) -> None:
    folder, copy = StudyFolder(study), StudyFolder(tmp_path)
    read = folder.read_study()
    copy.write_study(read)
    assert copy.read_study() == read
    before, after = (json.loads(one.study_json.read_text()) for one in (folder, copy))
    assert {key: after[key] for key in before if key != "content_sha256"} == {
        key: value for key, value in before.items() if key != "content_sha256"
    }
    for path in study.glob("runs/*/*/run.json"):
        written = json.loads(path.read_text())
        record = folder.read_record(path.parts[-3], int(path.parts[-2]))
        copy.write_run(record)
        again = json.loads((copy.run(record.arm, record.block) / "run.json").read_text())
        written.pop("content_sha256", None)  # it covers that of the digests now
        assert {key: again[key] for key in written} == written
        assert list(again["facts"].items()) == list(written["facts"].items())
        assert record.facts.device == written["facts"]["device"]


def test_facts_of_other_versions_come_back_in_their_order() -> None:
    content = {
        "profile": None,
        "profile_reason": "?",
        "device": "cpu",
        "threads": 2,
        "zeal": [1, {"x": None}],
        "nulls": 3,
    }
    facts = RunFacts.from_json(content)
    assert (facts.device, facts.threads, facts.profile, facts.cores) == ("cpu", 2, None, None)
    assert facts.others == {"zeal": [1, {"x": None}], "nulls": 3}
    assert list(facts.to_json().items()) == list(content.items())
    assert RunFacts().to_json() == {}


def test_a_number_is_written_as_it_was_read() -> None:
    content = {"peak_flops_per_s": 2 * 10**12, "price_per_hour_usd": 4, "flops_per_token": 6e6}
    found = RunFacts.from_json(content).to_json()
    assert [(one, type(one)) for one in found.values()] == [(one, type(one)) for one in content.values()]


def test_only_some_facts() -> None:
    facts = RunFacts.from_json({"device": "cpu", "parameters": None, "threads": 2, "later": 1})
    assert facts.only(("parameters", "cores", "device")).to_json() == {"parameters": None, "device": "cpu"}


def test_every_name_is_a_fact() -> None:
    assert set(NAMES) == set(RunFacts.from_json(dict.fromkeys(NAMES)).to_json())


def test_a_fact_of_another_type_fails_its_own_run_and_says_where(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    content = RunRecord("a", 0, "done").to_json()
    write_json(folder.run("a", 0) / "run.json", {**content, "facts": {"threads": "many"}})
    (run,) = folder.runs()
    assert run.record.status == "failed"
    assert "facts.threads" in (run.record.error or "")


def test_records_of_a_run_do_not_change() -> None:
    record = RunRecord("a", 0, "done", facts=RunFacts(threads=2))
    run = RunData(record, None, None, None)
    for one, name in ((record, "status"), (record.facts, "threads"), (run, "record"), (run, "steps"), (run, "probes")):
        with pytest.raises(FrozenInstanceError):
            setattr(one, name, None)


def test_another_record_of_the_same_run_knows_nothing_that_was_worked_out() -> None:
    run = RunData(RunRecord("a", 0, "done"), None, None, None)
    assert run.once("sum", lambda: 1) == run.once("sum", lambda: 2) == 1
    assert not replace(run, record=replace(run.record, status="failed")).knows("sum")
    run.forget("sum")
    assert run.once("sum", lambda: 2) == 2
