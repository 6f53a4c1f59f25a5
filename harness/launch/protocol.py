"""Defines the protocol between the launcher and the processes that it starts, which may run another state of the code.

``harness regress`` measures two states of this project side by side. The launcher of the state that runs the command
starts both; the processes that it starts import modules of *their* state. So everything that one state must know of
another stands here: module paths, command lines and messages. Whoever changes any of it raises :data:`VERSION`,
and keeps the previous version in :data:`PATHS` while somebody may want to compare with it.

    launcher -> fork server   packets of JSON: {"do": "fork"} with two descriptors ("entry": the module that the
                              process runs, if not the run's), {"do": "wait", "pid"}
    fork server -> launcher   {"pid"} or {"pid", "code"}
    launcher -> run           lines of JSON: {"record", "study", "probes", "beat_s", "data"}, then
                              {"do": "profile"} (before the repetitions; a closing window comes after them),
                              {"do": "finish"} or {"do": "turn", "turn", "settle", "steps"}: the
                              repetition "turn", of "settle" warm-up and "steps" measured steps,
                              and of up to "extra" warm-up steps more while prefetched batches are used up
    run -> launcher           {"event": "ready" | "turn" | "profile" | "done" | "failed", "error", "extra"}, and
                              {"event": "alive"} between steps, at least every "beat_s" seconds in which one ended

"beat_s", "alive", "data" and "extra" came later without a new version, as each side does without the other: an older
run ignores the keys, sends no sign of life and takes no extra step, and an older launcher asks for none. What ranks on
several machines need ("nodes", "meet", "clock" and the messages of node agents) stays within one state of the code:
such runs are not compared. So do "entry" and the messages of a sweep's trials.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NotRequired, TypeAlias, TypedDict

from trainer.errors import InputError
from trainer.json_types import JsonObject

if TYPE_CHECKING:
    from trainer.evaluate import Kind

VERSION = 2


@dataclass(frozen=True)
class Paths:
    """Module paths of one state of the code, as Python imports them."""

    fork_server: str  # run with -m: forks runs
    preloaded: tuple[str, ...]  # imported by every run
    environment: str  # has record_environment()


# By version. Version 1 is every state before this file existed; to be deleted once comparisons with it end.
PATHS = {
    1: Paths(
        "harness.launch.template",
        ("harness.launch.child", "trainer.loop", "trainer.compute", "trainer.data.loader"),
        "harness.environment",
    ),
    2: Paths(
        "harness.launch.fork_server",
        ("harness.launch.child", "trainer.loop", "trainer.compute.build", "trainer.data.loader"),
        "harness.machine.environment",
    ),
}
OWN = PATHS[VERSION]
# Fields of a run's record that are sent: an older state would refuse a field that it does not know.
RECORD_FIELDS = (
    "arm", "block", "status", "control", "of", "session", "position", "interleave", "pid", "started_utc", "ended_utc",
    "exit_code", "error", "config", "declared", "facts", "environment", "realtime_minus_monotonic_ns", "schema",
)  # fmt: skip
# The number is read from the line that begins so in the other state's file, without running its code.
_VERSION_LINE = "VERSION = "
NOT_THIS_PROJECT = (
    "not a state of this project; code of your own is compared by a scenario that names some (data.source, "
    "model.factory, command or loop)"
)


class ForkRequest(TypedDict):
    """Launcher to fork server, with two descriptors: the run's channel and its log."""

    do: Literal["fork"]
    entry: NotRequired[str]  # module whose main(channel, fork server's pid) the process runs, in place of a run's


class WaitRequest(TypedDict):
    """Launcher to fork server: wait until that run has ended."""

    do: Literal["wait"]
    pid: int


class ForkAnswer(TypedDict):
    """Fork server to launcher: the run that was forked, or has ended, with its exit status."""

    pid: int
    code: NotRequired[int]


class DataMessage(TypedDict):
    """Part of the first message: what the launcher found when it prepared the run's data."""

    corpus: str  # fingerprint
    tokenizer: str  # fingerprint
    engine: NotRequired[str]  # chosen engine
    hashed: list[list[str | int]]  # see trainer.data.cache.known_digests
    files: NotRequired[dict[str, list[str]]]  # files that the user's code imports, by its key; see user_code
    model: NotRequired[str]  # fingerprint of the code or the files of a model of the user's own


class NodesMessage(TypedDict):
    """Part of the first message of a run on several machines."""

    count: int
    address: str  # this machine's, as the others reach it
    token: str  # required from a rank that connects


class StartMessage(TypedDict):
    """Launcher to run: the first message."""

    record: JsonObject  # RECORD_FIELDS of the run
    study: str  # the study's folder
    probes: JsonObject  # see probes.run_probes
    beat_s: NotRequired[float]  # the run says "alive" at its start, and then this often
    data: NotRequired[DataMessage]  # the run fails if it finds other data; not sent to another state of the code
    nodes: NotRequired[NodesMessage]


class RepetitionOrder(TypedDict):
    """Launcher to run: run the repetition ``turn`` of ``settle`` warm-up and ``steps`` measured steps."""

    do: Literal["turn"]
    turn: int
    settle: int
    steps: int
    extra: NotRequired[int]  # warm-up steps more, at most, while the run consumes prefetched batches


class BareOrder(TypedDict):
    """Launcher to run: run the windows of the probes that disturb, or write the tables and end.

    Rank 0 to the other ranks alone: take one step (of a training, or an unmeasured one that it is profiled in), or
    stop a training before its end; evaluate: stop it after a last pass over held-out data.
    """

    do: Literal["profile", "finish", "step", "stop", "evaluate"]


class ClockAnswer(TypedDict):
    """Rank 0 to a rank on another machine: what its clock shows."""

    do: Literal["clock"]
    t_ns: int


class TrainOrder(TypedDict):
    """Rank 0 of a training to the others: go on from this checkpoint, as that part of it."""

    do: Literal["train"]
    checkpoint: str | None  # its folder
    block: int


class LackingOrder(TypedDict):
    """Rank 0 of a resumed training to the others: make these passes first, which the part before may not have made."""

    do: Literal["lacking"]
    passes: list[Kind]


RunOrder: TypeAlias = RepetitionOrder | BareOrder | ClockAnswer | TrainOrder | LackingOrder


class MeetingPlace(TypedDict):
    """Ports on which rank 0 waits for the ranks of other machines: torch's store and its own orders."""

    store: int
    control: int


class ForkRanksOrder(TypedDict):
    """Launcher to node agent: fork these ranks of a run."""

    do: Literal["fork"]
    run: str
    start: StartMessage
    meet: MeetingPlace
    ranks: list[int]


class SignalOrder(TypedDict):
    """Launcher to node agent: send a signal to the ranks of a run, and their workers."""

    do: Literal["signal"]
    run: str
    signal: int


class ImportOrder(TypedDict):
    """Launcher to node agent: import what the runs will need."""

    do: Literal["import"]
    modules: list[str]


NodeOrder: TypeAlias = ForkRanksOrder | SignalOrder | ImportOrder


class NodeEvent(TypedDict):
    """Node agent to launcher: who it is, or that it has everything imported; a rank to rank 0: which one it is."""

    event: Literal["hello", "ready"]
    token: NotRequired[str]
    number: NotRequired[int]  # the node's, or the rank's
    name: NotRequired[str]  # of the node


class RunEvent(TypedDict):
    """Run to launcher: an event."""

    event: Literal["ready", "turn", "profile", "done", "failed", "alive", "meet", "clock"]
    error: NotRequired[str | None]  # why it failed
    extra: NotRequired[int]  # "turn": how many warm-up steps more it took
    steps: NotRequired[int]  # "alive": that the device may still have to do, for which the run now waits
    meet: NotRequired[MeetingPlace]  # "meet": rank 0 waits for the ranks of other machines
    clock_error_ns: NotRequired[int]  # "done" of a rank of another machine: of its times on rank 0's clock, at most


class TrialStart(TypedDict):
    """Sweep to trial: the first message."""

    scenario: str  # the name that its training's folder has
    arm: str
    config: JsonObject
    steps: int
    folder: str
    command: list[str]
    milestones: list[int]  # after so many steps it reports and waits for an order
    above_start: float | None  # share above the first loss at which the mean of the last ones ends it
    window: int  # steps of that mean
    beat_s: float  # interval of the heartbeat while it steps


class TrialEvent(TypedDict):
    """Trial to sweep: its progress, or its end."""

    event: Literal["alive", "milestone", "ended"]
    steps: int
    tokens: int
    loss: float | None  # milestone: mean since the last one; ended: of the last step; None if it is not finite
    status: NotRequired[Literal["done", "interrupted", "failed", "diverged"]]
    validation_loss: NotRequired[float | None]
    error: NotRequired[str | None]
    right: NotRequired[float | None]  # share of the multiple-choice questions, after the last step
    wrong_input: NotRequired[bool]  # "error" is what the user wrote, so no other trial can work either


def protocol_of(folder: Path) -> int:
    """The version that the state of the code in ``folder`` speaks.

    Raises InputError (one line) where it holds no state of this project, or one that speaks an unknown protocol.
    """
    file = folder / "harness" / "launch" / "protocol.py"
    if file.is_file():
        lines = [line for line in file.read_text().splitlines() if line.startswith(_VERSION_LINE)]
        number = lines[0].removeprefix(_VERSION_LINE).strip() if lines else "none"
        if not number.isdecimal() or int(number) not in PATHS:
            versions = ", ".join(map(str, PATHS))
            raise InputError(
                f"{folder}: speaks protocol {number} between launcher and runs; this state knows {versions}"
            )
        version = int(number)
    else:
        version = 1
    server = folder.joinpath(*PATHS[version].fork_server.split(".")).with_suffix(".py")
    if not server.is_file() or not (folder / "trainer").is_dir():
        wanted = server.relative_to(folder)
        raise InputError(f"{folder}: holds no {wanted} and trainer/: {NOT_THIS_PROJECT}")
    return version
