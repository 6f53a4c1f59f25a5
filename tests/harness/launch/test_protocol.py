"""The protocol between two states of the code: found out from files alone, and refused in one line where unknown."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from harness.launch.protocol import OWN, PATHS, RECORD_FIELDS, VERSION, protocol_of
from harness.study.records import RunRecord
from tests.studies import ROOT
from trainer.errors import InputError


def state(folder: Path, *modules: str, protocol: str | None = None) -> Path:
    for module in modules:
        path = folder.joinpath(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / "trainer").mkdir(exist_ok=True)
    if protocol is not None:
        (folder / "harness" / "launch" / "protocol.py").write_text(protocol)
    return folder


def test_this_state_speaks_the_version_of_its_file_and_has_every_module_that_it_promises(tmp_path: Path) -> None:
    assert protocol_of(ROOT) == VERSION == max(PATHS)
    for module in (OWN.fork_server, OWN.environment, *OWN.preloaded):
        assert importlib.util.find_spec(module) is not None, module
    assert protocol_of(state(tmp_path, PATHS[1].fork_server)) == 1  # from before the file


@pytest.mark.parametrize(("line", "said"), [("VERSION = 99", "99"), ("VERSION = two", "two"), ("# nothing", "none")])
def test_an_unknown_version_is_refused_with_those_that_are_known(tmp_path: Path, line: str, said: str) -> None:
    folder = state(tmp_path, OWN.fork_server, protocol=f"import os\n{line}\n")
    with pytest.raises(InputError, match=f"speaks protocol {said} between launcher and runs; .* supports 1, 2$"):
        protocol_of(folder)


@pytest.mark.parametrize("version", [None, VERSION])
def test_a_folder_without_a_fork_server_is_no_state(tmp_path: Path, version: int | None) -> None:
    folder = state(tmp_path, "harness.launch.other", protocol=None if version is None else f"VERSION = {version}\n")
    with pytest.raises(InputError, match=r"has no harness/launch/\w+\.py or no trainer/: not a state of this project"):
        protocol_of(folder)


# Of the record of a run, as the state before the redesign (f56d062) has it: what else is sent it refuses.
FIELDS_OF_THE_FIRST = {
    "arm", "block", "status", "control", "of", "session", "position", "interleave", "pid", "started_utc", "ended_utc",
    "exit_code", "error", "config", "declared", "facts", "environment", "realtime_minus_monotonic_ns", "startup_ns",
    "peak_memory_bytes", "peak_device_bytes", "schema",
}  # fmt: skip


def test_a_run_is_sent_no_field_that_the_first_version_does_not_know() -> None:
    record = RunRecord("a", 0, "interrupted", digests={"steps.parquet": ("0",)}).to_json()
    assert set(RECORD_FIELDS) <= FIELDS_OF_THE_FIRST & set(record)
    assert "digests" in set(record) - set(RECORD_FIELDS)  # it came later
