"""The agent within programs that know nothing of it: it counts their steps, and it changes nothing.

All programs run in forks of two processes, one with the agent and one without: importing torch takes longer than they.
"""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.attach.agent import events
from harness.attach.run_record import unseen_place
from harness.attach.totals import ThreadTime
from harness.explain import causes
from harness.judge.policy import UNSEEN_SHARE_MAX
from harness.probes.ledger import rows
from harness.study.contract import PHASES, RECEIVE
from harness.study.store import StudyFolder
from tests.commands import harness
from tests.harness.attach.running import SHAPES, Ran, Recorded, chosen, losses, place_of, record_all, run_all

pytestmark = pytest.mark.slow

# Programs, and how many steps each has.
LOOPS = {
    **SHAPES,
    "plain --steps 30 --workers 2": 30,
    "plain --steps 30 --iterable --workers 1": 30,
    "plain --steps 30 --workers 2 --persistent --epoch 7": 30,
    "plain --steps 30 --tokenize-words 5000": 30,
    "by_hand 30 4": 30,
    "threaded 40 8": 40,
    "forked": 30,
    # The other kinds: python -m tests.campaigns attached_truth.kinds.
    **dict.fromkeys((f"loaders {kind}" for kind in (
        "own-generator", "worker-init", "batch-sampler", "no-batching", "getitems", "own-collate",
    )), 24),
}  # fmt: skip
CLOSED_BY = {
    "shapes two_optimizers": "AdamW",
    "shapes gan": "SGD",
    "shapes within_backward": "optimizers within the backward pass",
    "plain --steps 30": "AdamW",
}
EVALUATING = "plain --steps 30 --evaluate-every 10"
COMPILED = [f"compiled {how}" for how in ("model", "fullgraph", "in_place", "blocks", "function", "optimizer")]
# Programs that end badly: exit code (negative: the signal), and the fewest and the most steps that are kept.
BAD_ENDS = {"plain --steps 60 --fail-at 20": (7, 20, 20), "plain --steps 60 --kill-at 50": (-signal.SIGKILL, 30, 50)}
DEADLINES = ("deadline 0", "deadline 1")
# Functions of the agent by module: each is made to fail in a run of its own.
HOOKS = {
    "arrivals": ("watch", "taken"),
    "batches": ("received", "made_by", "evaluated"),
    "boundaries": (
        "fetching", "_open_step", "_begin", "flush", "trains", "backward_of", "_is_warmup", "monotonic_ns",
    ),
    "controls": ("kept", "thrown_away"),
    "device": ("trains_on", "collect", "last"),
    "inspection": ("trains", "fingerprint"),
    "padding": ("batch_arrived",),
    "loading": ("_begin", "_look_at", "_ended", "sizes", "_close", "_from_worker"),
    "stages": ("begin", "cut", "end", "take", "making", "enter_within", "leave"),
    "phases": ("enter", "leave", "making", "_read_core", "origin", "trains_on", "monotonic_ns"),
    "record": ("write", "note", "framed", "FrameFile", "_open"),
    "run_queue": ("read", "find_threads"),
    "switches": ("count",),
    "updates": ("get_ident", "monotonic_ns", "_count", "_backward_begins", "_backward_ended", "_update_begins"),
    "watching": ("_conclude", "_module_begins", "_time_calls", "_profile", "_on_step", "_forward_begins"),
}  # fmt: skip
FAULTY, WITH_WORKER = "plain --steps 9", "plain --steps 9 --workers 1"
NEED_A_WORKER = ("_from_worker", "write", "made_by", "_close", "end", "watch", "taken")
FAULTS = [
    f"{module}.{name}!{WITH_WORKER if name in NEED_A_WORKER else FAULTY}"
    for module, names in HOOKS.items()
    for name in names
]
# Of most modules the first function fails in every run of the tests; the others, and rare modules, by night.
USUAL = {*(names[0] for names in HOOKS.values()), "received"}
RARE = {fault for fault in FAULTS if fault.partition("!")[0].partition(".")[2] not in USUAL}
RARE |= {one for one in FAULTS if one.startswith(("controls", "device", "switches", "run_queue"))}
RARE |= {"compiled fullgraph", "compiled blocks", "compiled in_place", "compiled function", "compiled optimizer"}
RARE |= {"shapes lbfgs", "shapes own_optimizer", "shapes teacher", "loaders batch-sampler", "loaders getitems"}


def nightly(programs: Iterable[str]) -> list[Any]:
    """Parameters of a test, of which the rare ones are for `make test-all`."""
    return [pytest.param(one, marks=pytest.mark.nightly) if one in RARE else one for one in programs]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Ran]:
    programs = [*chosen(request, [*LOOPS, *COMPILED]), FAULTY]
    return run_all(tmp_path_factory.mktemp("plain") / "out", programs, None)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Recorded:
    programs = [*chosen(request, [*LOOPS, *COMPILED, *FAULTS]), *BAD_ENDS, *DEADLINES, "asleep"]
    return record_all(tmp_path_factory.mktemp("seen"), programs)


@pytest.mark.parametrize("program", nightly(LOOPS))
def test_every_step_is_counted_and_no_loss_changes(
    tmp_path: Path, plain: dict[str, Ran], seen: Recorded, program: str
) -> None:
    steps = LOOPS[program]
    ran, one = seen.ran[program], seen.of(program)
    assert (ran.code, plain[program].code) == (0, 0), ran.lines
    assert losses(ran.lines) == losses(plain[program].lines)
    assert len(losses(ran.lines)) == steps
    assert one.noted("fault") == []
    found = seen.tables(program, tmp_path)
    assert found.sum(lambda block: block.begun) == steps
    assert list(dict.fromkeys(row["step"] for row in found.steps)) == list(range(steps))
    measured = [row["step"] for row in found.steps if not row["warmup"]]
    assert len(set(measured)) == len(measured) == found.sum(lambda block: block.measured)
    if "evaluate" not in program and "both" not in program:  # no step is lost between two blocks
        assert measured == list(range(4, steps))
    for row in found.steps:
        assert sum(row[f"{phase}_ns"] for phase in PHASES) == row["wall_ns"]
    spans = {(row["role"], row["name"], row["start_ns"], row["end_ns"]): row for row in found.spans}.values()
    fetched = [row["end_ns"] for row in spans if row["name"] == "fetch"]
    received = [row for row in spans if row["role"] == RECEIVE]
    # The wait in which an epoch ended brought no batch.
    assert len(received) == (steps if "--workers" in program or program == "loaders worker-init" else 0)
    assert all(row["start_ns"] <= row["end_ns"] <= max(fetched) for row in received)
    if program in CLOSED_BY:
        assert one.noted("closes")[-1] == CLOSED_BY[program]
    assert bool(one.noted("iterable")) == ("--iterable" in program)
    if program == EVALUATING:
        assert measured == [step for step in range(4, steps) if step not in (9, 19, 29)]
        assert found.sum(lambda block: block.excluded.evaluating) == 3
        assert max(block.evaluating_share for block in found.blocks) > 0
        assert sorted(step for block in found.blocks for step in block.excluded.numbers) == [9, 19, 29]


def test_a_child_that_python_did_not_fork_writes_what_it_did_into_a_file_of_its_own(seen: Recorded) -> None:
    """The steps of its parent are counted above. The one that it was forked in is nobody's."""
    (found,) = (line for line in seen.ran["forked"].lines if line.startswith("child: "))
    child = seen.processes[int(found.split()[1].rstrip(","))]
    assert child.steps == 26  # It ends with os._exit(), which loses the step that is open.
    assert child.noted("fault") == []


@pytest.mark.parametrize(
    ("program", "evaluating"),
    [("new_dataset", 0), ("new_dataset_and_teacher", 0), ("two_loaders", 0), ("new_datasets_of_both", 4)],
)
def test_batches_of_a_new_dataset_are_of_training_where_they_are_trained_on(
    tmp_path: Path, seen: Recorded, program: str, evaluating: int
) -> None:
    found = seen.tables(f"shapes {program}", tmp_path)
    assert found.sum(lambda block: block.excluded.evaluating) == evaluating
    assert found.sum(lambda block: block.measured) == 24 - 4 - evaluating
    assert found.sum(lambda block: sum(block.data.fetches.values())) == 24 - 4 - evaluating


@pytest.mark.parametrize(("program", "since"), [("shapes diverges", 12), ("shapes scaler", 24)])
def test_a_loss_that_stays_nan_is_known_and_one_that_a_scaler_skips_is_none(
    tmp_path: Path, seen: Recorded, program: str, since: int
) -> None:
    table = seen.tables(program, tmp_path).steps
    assert {row["step"] for row in table if row["loss"] is not None} == set(range(since, 24))


@pytest.mark.parametrize("program", nightly(COMPILED))
def test_no_graph_is_broken_and_nothing_compiled_again(plain: dict[str, Ran], seen: Recorded, program: str) -> None:
    assert plain[program].code == 0, plain[program].lines
    (*lines, last), (*expected, first) = (
        [line for line in one.lines if not line.startswith("W")] for one in (seen.ran[program], plain[program])
    )
    assert lines == expected
    (graphs, frames), (expected_graphs, expected_frames) = (line.split(" frames ") for line in (last, first))
    assert graphs == expected_graphs  # their number, and that of breaks
    assert sum(map(int, re.findall(r"\d+", frames))) <= sum(map(int, re.findall(r"\d+", expected_frames)))
    assert seen.of(program).noted("fault") == []


@pytest.mark.parametrize("fault", nightly(FAULTS))
def test_a_fault_of_ours_changes_nothing(plain: dict[str, Ran], seen: Recorded, fault: str) -> None:
    """Training ends as it would have, to the last digit."""
    ran = seen.ran[fault]
    assert ran.code == 0, ran.lines
    assert losses(ran.lines) == losses(plain[FAULTY].lines)
    assert [line for line in ran.lines if "injected" in line] == []
    if fault.startswith("batches.received"):
        (note,) = seen.of(fault).noted("fault")
        assert note.endswith("OSError: injected\n")


@pytest.mark.parametrize("program", DEADLINES)
def test_what_a_signal_handler_of_the_program_raises_within_a_hook_reaches_the_program(
    tmp_path: Path, seen: Recorded, program: str
) -> None:
    """Every eighth batch has the signal sent: five times in 40 steps; that step is recorded, and not measured."""
    ran = seen.ran[program]
    assert ran.code == 0, ran.lines
    (line,) = [line for line in ran.lines if line.startswith("caught")]
    assert line.split()[1] == "5"
    assert seen.of(program).noted("fault") == []
    found = seen.tables(program, tmp_path)
    assert found.sum(lambda block: block.begun) == 40
    assert found.sum(lambda block: block.excluded.interrupted) >= 4  # a block begins with warm-up steps


def test_what_was_recorded_becomes_a_study_later(tmp_path: Path, seen: Recorded) -> None:
    """Where the harness was killed, the study's folder keeps what the agent wrote."""
    (raw := tmp_path / "raw").mkdir()
    shutil.copy(seen.of("by_hand 30 4").path, raw)
    words = ("exec", "--recorded", str(raw), "--out", str(tmp_path / "out"))
    done = harness(*words)
    assert done.returncode == 0, done.stderr
    (study,) = (tmp_path / "out" / "exec").iterdir()
    tables = [run.steps for run in StudyFolder(study).runs() if run.steps is not None]
    assert {step for table in tables for step in table.column("step").to_pylist()} == set(range(30))
    assert list(raw.glob("*.frames"))  # it is the user's to remove
    refused = harness(*words, "--", "true")
    line = "harness: exec: --recorded runs nothing: omit the command\n"
    assert (refused.returncode, refused.stderr) == (2, line)


@pytest.mark.parametrize(("program", "ends"), BAD_ENDS.items())
def test_a_program_that_ends_badly_loses_one_frame_at_most(
    tmp_path: Path, seen: Recorded, program: str, ends: tuple[int, int, int]
) -> None:
    code, least, most = ends
    assert seen.ran[program].code == code
    assert least <= seen.tables(program, tmp_path).sum(lambda block: block.begun) <= most


def test_a_function_that_fetches_is_found_by_the_tensors_that_enter_the_model(tmp_path: Path, seen: Recorded) -> None:
    (place,) = seen.of("by_hand 30 4").noted("fetch")
    assert place.startswith("get_batch (by_hand.py:")
    waits = [row["fetch_ns"] for row in seen.tables("by_hand 30 4", tmp_path).steps]
    assert min(waits[6:]) >= 4e6  # a sleep is never shorter


@pytest.mark.parametrize("words", [0, 5000])
def test_tokenizing_in_the_loop_itself_is_seen_beside_its_fetches(tmp_path: Path, seen: Recorded, words: int) -> None:
    first, *_ = seen.tables(f"plain --steps 30{f' --tokenize-words {words}' * bool(words)}", tmp_path).blocks
    share = first.share(first.data.tokenizing_ns)
    assert share > 0.5 if words else share == 0


def test_events_have_numbers_of_their_own_and_those_of_the_ledger_are_its_own() -> None:
    """The agent runs in the user's process and imports nothing of ours: the ledger's numbers stand in it once more."""
    numbers = {name: value for name, value in vars(events).items() if name.isupper() and type(value) is int}
    for name in ("EXACT", "LATE", "FORCED", "LENGTH_BYTES", "ENDED", "UNKNOWN_NUMBER", "MOST_PROFILE_STEPS"):
        del numbers[name]
    assert len(set(numbers.values())) == len(numbers)
    ledger = {name: getattr(rows, name) for name in ("ENTER", "EXIT", "STEP", "PAUSE", "RECEIVED", "UNPACKED")}
    assert {name: numbers[name] for name in ledger} == ledger
    unwritten = {events.POSSIBLE_STEP, events.UNKNOWN_FETCH}
    assert {*numbers.values()} - {*ledger.values()} - unwritten == events.OWN | events.EXCLUDING
    assert rows.TAKEN not in numbers.values()
    assert (events.HOOKS, events.HOLDER) == (causes.HOOKS, causes.HOLDER)


def test_a_wait_that_no_seam_shows_is_found_and_placed(tmp_path: Path, seen: Recorded) -> None:
    """Batches come from a thread through a queue."""
    one = seen.of("threaded 40 8")
    blocks = seen.tables("threaded 40 8", tmp_path).blocks
    assert min(block.share(block.thread.unseen_blocked_ns) for block in blocks) > UNSEEN_SHARE_MAX
    place, blocked_ns = one.noted("blocked")[0]
    assert place.startswith("threaded.py:")
    assert blocked_ns > 0
    assert unseen_place(one, blocks[0]) == place
    # Rare long waits, such as checkpoints, are most of what was not seen: the watched steps do not show their place.
    rare = replace(blocks[0], thread=ThreadTime(unseen_blocked_ns=3 * blocked_ns * blocks[0].measured))
    assert unseen_place(one, rare) is None


def test_a_wait_within_what_is_timed_is_no_place_that_nobody_sees(seen: Recorded) -> None:
    """Neither forward pass nor fetch is a phase yet in the two steps that are watched."""
    one = seen.of("asleep")
    asleep = [place for place, _ in one.noted("blocked") if "(sleep)" in place]  # a busy machine may add others
    assert asleep == [f"{place_of('asleep', 'nobody times')} (sleep)"]
    assert one.noted("fetch")
