"""Defines the protocol between the launcher and the processes that it starts, which may run another state of the code.

``harness regress`` measures two states of this project side by side. The launcher of the state that runs the command
starts both; the processes that it starts import modules of *their* state. So this module has everything that one state
must know about another: module paths, command lines and messages. A change of any of them requires a higher
:data:`VERSION`. The previous version stays in :data:`PATHS` as long as comparisons with it are supported.

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

"beat_s", "alive", "data" and "extra" were added later without a new version, because both sides work without them. An
older run ignores the keys, sends no heartbeat and takes no extra step. An older launcher does not ask for them. The
keys for several machines ("nodes", "meet", "clock" and the messages of node agents) are only used within one state of
the code, because such runs are not compared. So are "entry" and the messages of a sweep's trials.
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
    """Paths of the modules that a launcher starts or imports in another state of the code. One per protocol version."""

    fork_server: str  # run with -m: forks runs
    preloaded: tuple[str, ...]  # imported by every run
    environment: str  # has record_environment()


# Paths by version. Version 1: all states before this file existed. Delete it once comparisons with it end.
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
# Fields of a run's record that are sent. An older state would refuse unknown fields.
RECORD_FIELDS = (
    "arm", "block", "status", "control", "of", "session", "position", "interleave", "pid", "started_utc", "ended_utc",
    "exit_code", "error", "config", "declared", "facts", "environment", "realtime_minus_monotonic_ns", "schema",
)  # fmt: skip
# The version is read from the line with this prefix in the other state's file, without running its code.
_VERSION_LINE = "VERSION = "
NOT_THIS_PROJECT = (
    "not a state of this project; to compare your own code, use a scenario that names it (data.source, "
    "model.factory, command or loop)"
)


class ForkRequest(TypedDict):
    """Launcher to fork server: fork a run. Two file descriptors come with it: the run's channel and its log."""

    do: Literal["fork"]
    entry: NotRequired[str]  # module whose main(channel, pid of the fork server) runs instead of a run's


class WaitRequest(TypedDict):
    """Launcher to fork server: wait until the run with process id ``pid`` has ended."""

    do: Literal["wait"]
    pid: int


class ForkAnswer(TypedDict):
    """Fork server to launcher: the run ``pid`` was forked or, with ``code``, has ended with that exit status."""

    pid: int
    code: NotRequired[int]


class DataMessage(TypedDict):
    """Part of a run's first message: what the launcher prepared, as fingerprints of corpus, tokenizer and model."""

    corpus: str  # fingerprint
    tokenizer: str  # fingerprint
    engine: NotRequired[str]  # chosen engine
    hashed: list[list[str | int]]  # see trainer.data.cache.known_digests
    files: NotRequired[dict[str, list[str]]]  # files imported by the user's code, by key; see user_code
    model: NotRequired[str]  # fingerprint of the code or files of the user's model


class NodesMessage(TypedDict):
    """Part of the first message of a run on several machines: their number, and how ranks reach rank 0."""

    count: int
    address: str  # address of this machine, as reached by the others
    token: str  # required from a rank that connects


class StartMessage(TypedDict):
    """Launcher to run: the first message, with everything that the run needs to open its training."""

    record: JsonObject  # RECORD_FIELDS of the run
    study: str  # the study's folder
    probes: JsonObject  # see probes.probe
    beat_s: NotRequired[float]  # interval of the run's heartbeat
    data: NotRequired[DataMessage]  # The run fails if its data differ. Not sent to another state of the code.
    nodes: NotRequired[NodesMessage]


class RepetitionOrder(TypedDict):
    """Launcher to run: ``settle`` warm-up steps, then ``steps`` measured ones, of repetition ``turn``."""

    do: Literal["turn"]
    turn: int
    settle: int
    steps: int
    extra: NotRequired[int]  # maximum extra warm-up steps while the run consumes prefetched batches


class BareOrder(TypedDict):
    """Launcher to run: record windows ("profile"), or write the tables and end ("finish"). From rank 0 also "step"
    (take one), "stop" (end early) and "evaluate" (end after a last evaluation).
    """

    do: Literal["profile", "finish", "step", "stop", "evaluate"]


class ClockAnswer(TypedDict):
    """Rank 0 to a rank on another machine: the time of rank 0's clock in ns (CLOCK_MONOTONIC)."""

    do: Literal["clock"]
    t_ns: int


class TrainOrder(TypedDict):
    """Rank 0 to the others: train part ``block``, from a checkpoint or (None) from the beginning."""

    do: Literal["train"]
    checkpoint: str | None  # folder of the checkpoint
    block: int


class LackingOrder(TypedDict):
    """Rank 0 to the others: first make evaluation passes that an earlier part may have missed."""

    do: Literal["lacking"]
    passes: list[Kind]


RunOrder: TypeAlias = RepetitionOrder | BareOrder | ClockAnswer | TrainOrder | LackingOrder


class MeetingPlace(TypedDict):
    """Ports on which rank 0 waits for ranks of other machines: ``store`` for torch, ``control`` for orders."""

    store: int
    control: int


class ForkRanksOrder(TypedDict):
    """Launcher to node agent: fork the ranks ``ranks`` of the run ``run`` on its machine."""

    do: Literal["fork"]
    run: str
    start: StartMessage
    meet: MeetingPlace
    ranks: list[int]


class SignalOrder(TypedDict):
    """Launcher to node agent: send the signal ``signal`` to the ranks of the run ``run`` and to their workers."""

    do: Literal["signal"]
    run: str
    signal: int


class ImportOrder(TypedDict):
    """Launcher to node agent: import these modules, which the runs need, before any rank is forked."""

    do: Literal["import"]
    modules: list[str]


NodeOrder: TypeAlias = ForkRanksOrder | SignalOrder | ImportOrder


class NodeEvent(TypedDict):
    """Node agent to launcher: identity ("hello"), imports done ("ready"). Rank to rank 0: its identity."""

    event: Literal["hello", "ready"]
    token: NotRequired[str]
    number: NotRequired[int]  # number of the node or rank
    name: NotRequired[str]  # name of the node


class RunEvent(TypedDict):
    """Run to launcher, or another rank to rank 0: an order is done, a failure, or a heartbeat."""

    event: Literal["ready", "turn", "profile", "done", "failed", "alive", "meet", "clock"]
    error: NotRequired[str | None]  # reason of a failure
    extra: NotRequired[int]  # "turn": number of extra warm-up steps
    steps: NotRequired[int]  # "alive": maximum steps of the device that the run now waits for
    meet: NotRequired[MeetingPlace]  # "meet": rank 0 waits for the ranks of other machines
    clock_error_ns: NotRequired[int]  # "done" on another machine: maximum error of its times


class TrialStart(TypedDict):
    """Sweep to the process of a trial: the first message, with the training to run and when to report."""

    scenario: str  # name of its training's folder
    arm: str
    config: JsonObject
    steps: int
    folder: str
    command: list[str]
    milestones: list[int]  # numbers of steps after which it reports and waits for an order
    above_start: float | None  # ends the trial if the mean of the last losses exceeds the first by this share
    window: int  # number of steps in this mean
    beat_s: float  # interval of the heartbeat while it steps


class TrialEvent(TypedDict):
    """Message from a trial's process to its sweep: heartbeat, report at a milestone (a number of steps), or end."""

    event: Literal["alive", "milestone", "ended"]
    steps: int
    tokens: int
    loss: float | None  # milestone: mean since the last one; ended: last step; None: not finite
    status: NotRequired[Literal["done", "interrupted", "failed", "diverged"]]
    validation_loss: NotRequired[float | None]
    error: NotRequired[str | None]
    right: NotRequired[float | None]  # share of correct multiple-choice answers after the last step
    wrong_input: NotRequired[bool]  # The user's input causes "error", so all trials would fail.


def protocol_of(folder: Path) -> int:
    """Return the protocol version of the code in ``folder``. Raises InputError if it has none or an unknown one."""
    file = folder / "harness" / "launch" / "protocol.py"
    if file.is_file():
        lines = [line for line in file.read_text().splitlines() if line.startswith(_VERSION_LINE)]
        number = lines[0].removeprefix(_VERSION_LINE).strip() if lines else "none"
        if not number.isdecimal() or int(number) not in PATHS:
            versions = ", ".join(map(str, PATHS))
            raise InputError(
                f"{folder}: speaks protocol {number} between launcher and runs; this state supports {versions}"
            )
        version = int(number)
    else:
        version = 1
    server = folder.joinpath(*PATHS[version].fork_server.split(".")).with_suffix(".py")
    if not server.is_file() or not (folder / "trainer").is_dir():
        wanted = server.relative_to(folder)
        raise InputError(f"{folder}: has no {wanted} or no trainer/: {NOT_THIS_PROJECT}")
    return version
