"""Runs a study: prepares the data, then runs all blocks. Finished runs are kept in any case."""

from __future__ import annotations

import fcntl
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from harness.launch.block import NO_REPETITIONS, Repetitions, modules_of, plan_repetitions, run_block
from harness.launch.budget import Deadline
from harness.launch.channel import BudgetSpent, WaitLimits
from harness.launch.choose_workers import refuse_auto, with_workers_chosen
from harness.launch.code import Code
from harness.launch.ending import terminable
from harness.launch.more_warmup import most_extra_steps
from harness.launch.needs import check_memory, choose_interleave, limit_warnings
from harness.launch.nodes import Nodes, check_nodes, other_nodes
from harness.launch.preparation import StudyData, check_devices, check_writable, prepare_data, recorded_configs
from harness.launch.probing import probes_of
from harness.launch.process import RunProcess
from harness.launch.progress import Progress
from harness.launch.protocol import OWN
from harness.launch.quiet import LoadCheck
from harness.machine.environment import record_environment, record_user_environment
from harness.scenario.model import LimitsConfig
from harness.study.contract import PROFILED
from harness.study.records import COMMAND, ArmRecord, RunRecord, StudyRecord, new_study_id, now, session_of
from harness.study.store import StudyFolder
from trainer.config import SlurmConfig, TrainerConfig, recorded_config
from trainer.errors import InputError, cannot_write
from trainer.json_types import JsonObject, integer, section

if TYPE_CHECKING:
    from harness.scenario.plan import Arm, Plan


class Outcome(NamedTuple):
    """Folder of a study that was run, and its status: done, failed (at least one run), interrupted, or submitted.

    ``cut``: what ran when the time limit ended it. ``in_queue``: True if its jobs continue.
    """

    folder: Path
    status: str
    cut: str | None = None
    in_queue: bool = False


Enough = Callable[[StudyFolder, StudyRecord, int], bool]


@dataclass(frozen=True)
class Sequential:
    """Options of a study that runs block by block until ``enough`` of the finished ones is True, or until ``end_ns``
    (CLOCK_MONOTONIC). ``arms``: records by name that replace the plan's.
    """

    enough: Enough
    arms: Mapping[str, ArmRecord] = field(default_factory=dict)
    end_ns: int | None = None


def arm_record(arm: Arm) -> ArmRecord:
    """Return the record of a planned arm for study.json."""
    return ArmRecord(arm.name, arm.control, arm.of, arm.declared, arm.config.model_dump(mode="json"))


@dataclass(frozen=True)
class Elsewhere:
    """Machines on which a study's runs will be. ``free_bytes``: free memory of one; None if unknown."""

    place: str  # "of Slurm's nodes"
    free_bytes: int | None


@dataclass(frozen=True)
class StudyOptions:
    """Options of a study's runs that are not in the scenario: memory check, time limit, warm-up and load check."""

    force: bool = False  # Also start runs that cannot fit into memory
    until: Deadline | None = None  # Time limit of the study. Finished runs are kept.
    extra_warmup: bool = True
    """True: repetitions warm up until they no longer consume prefetched batches. False: a fixed number of steps."""
    load_check: LoadCheck | None = None  # Check that runs before block 0


DEFAULTS = StudyOptions()


def run_study(
    plan: Plan,
    out: Path,
    command: Sequence[str],
    source: str,
    sequential: Sequential | None = None,
    options: StudyOptions = DEFAULTS,
) -> Outcome:
    """Run ``plan`` as a new study under ``out``. Return folder and status. Raises InputError if it cannot run here."""
    if sequential is not None and any(config_slurm(arm.config) is not None for arm in plan.arms):
        raise InputError("launch.slurm: a regression check runs on this machine; give --set launch.slurm=null")
    folder, record, data = begin_study(plan, out, command, source, sequential, options.force)
    print(f"study {folder.path}: interleave {record.interleave} ({record.interleave_reason})", file=sys.stderr)
    with only_one(folder):
        return _execute(folder, record, data, options, sequential)


def begin_study(
    plan: Plan,
    out: Path,
    command: Sequence[str],
    source: str,
    sequential: Sequential | None = None,
    force: bool = False,
    elsewhere: Elsewhere | None = None,
) -> tuple[StudyFolder, StudyRecord, StudyData]:
    """Prepare data and an empty folder for a new study under ``out``, to run ``elsewhere`` or (None) here. Return
    (folder, record, data). Raises InputError if it cannot run.
    """
    if sequential is not None or elsewhere is not None:
        cause = "both sides of a comparison need the same number" if sequential else "its runs are on other machines"
        refuse_auto([arm.config for arm in plan.arms], cause)
    refuse_resume({arm.name: arm.config for arm in plan.arms})
    if elsewhere is None:
        check_devices({arm.name: arm.config for arm in plan.arms})
        check_nodes(arm.config for arm in plan.arms)
    check_writable(out)
    with terminable():  # Otherwise a signal of a batch system would leave half a file in the cache.
        plan, choices = with_workers_chosen(plan, plan.scenario.limits.start_s)
        configs = {arm.name: arm.config for arm in plan.arms}
        arms = {**{arm.name: arm_record(arm) for arm in plan.arms}, **(sequential.arms if sequential else {})}
        codes = {name: code for name, arm in arms.items() if (code := _code(arm)) and code.directory is not None}
        data = prepare_data(configs, plan.scenario.limits.start_s, codes)
    measured = [need for arm, need in zip(plan.arms, data.needs, strict=True) if arm.control != PROFILED]
    if elsewhere is None:
        interleave, reason = choose_interleave(plan.scenario.interleave, measured)
        profiled = {arm.name for arm in plan.arms if arm.control == PROFILED}
        check_memory(data.needs, profiled, interleave, None if sequential else force)
        _warn_of_limits([arm.config for arm in plan.arms if arm.control != PROFILED], interleave)
    else:  # Each job checks its own machine.
        interleave, reason = choose_interleave(
            plan.scenario.interleave, measured, elsewhere.free_bytes, elsewhere.place
        )
    record = StudyRecord(
        scenario=plan.scenario.name,
        question=plan.scenario.question,
        status="running",
        created_utc=now(),
        command=list(command),
        scenario_file=source,
        scenario_text=plan.scenario.model_dump(mode="json"),
        interleave=interleave,
        interleave_reason=reason,
        blocks=len(plan.blocks),
        order=[list(block) for block in plan.blocks],
        arms=[arms[arm.name] for arm in plan.arms],
        comparisons=list(plan.comparisons),
        environment=environment_of(configs.values()),
        fingerprints=data.fingerprints,
        id=new_study_id(),
        notes=[*choices, *data.notes],
        left_out={name: list(modules) for name, modules in plan.left_out.items()},
    )
    for name, modules in plan.left_out.items():
        print(f"{name} is left out: it needs {', '.join(modules)}, which is not installed", file=sys.stderr)
    return create_folder(out, plan.scenario.name), record, data


def refuse_resume(configs: Mapping[str, TrainerConfig]) -> None:
    """Raise InputError if an arm's ``resume`` is set: each run of a study starts at step 0."""
    for name, config in configs.items():
        if config.resume is not None:
            raise InputError(
                f"arm {name}: resume: of a training (harness train SCENARIO --arm {name}); the runs of a study begin "
                "at step 0: give --set resume=null"
            )


def config_slurm(config: TrainerConfig) -> SlurmConfig | None:
    """Return the Slurm settings of ``config``; None if it runs on this machine."""
    return None if config.launch is None else config.launch.slurm


def resume_study(path: Path, command: Sequence[str], options: StudyOptions = DEFAULTS) -> Outcome:
    """Run the missing runs of ``path``. Return folder and status. Raises InputError if it cannot be resumed."""
    folder = StudyFolder(path)
    record = read_resumable(folder)
    data = _prepare_again(folder, record, options.force)
    record = replace(record, notes=[*record.notes, f"resumed {now()}: {' '.join(command)}"])
    with only_one(folder):
        folder.remove_leftovers()
        return _execute(folder, record, data, options)


def run_part(path: Path, block: int | None, force: bool = False) -> bool:
    """Run, within a Slurm job, the missing runs of ``block`` (None: of all). Return True if all are done now."""
    folder = StudyFolder(path)
    record = read_resumable(folder)
    if block is not None and not 0 <= block < len(record.order):
        raise InputError(f"{path}: there is no block {block}; allowed: 0 to {len(record.order) - 1}")
    chosen = [block] if block is not None else list(range(len(record.order)))
    with ExitStack() as held, terminable():
        for locked_block in chosen:
            held.enter_context(only_one(folder, f"slurm/block-{locked_block}.lock"))
        data = _prepare_again(folder, record, force)
        _run_blocks(folder, record, data, StudyOptions(), None, chosen)
    return all(folder.is_done(name, number) for number in chosen for name in record.order[number])


def read_resumable(folder: StudyFolder) -> StudyRecord:
    """Return the record of the study in ``folder``. Raises InputError for a training, commands, or two states."""
    record, path = folder.read_study(), folder.path
    if record.is_training:
        raise InputError(f"{path}: a training; continue it with harness train SCENARIO --out {path} --resume")
    if any(COMMAND in arm.declared for arm in record.arms):
        raise InputError(f"{path}: a study of commands is not resumed; run it again")
    if any(arm.code is not None for arm in record.arms):  # The code may have changed or be gone.
        raise InputError(f"{path}: a study of two states of the code is not resumed; run harness regress again")
    return record


def _prepare_again(folder: StudyFolder, record: StudyRecord, force: bool) -> StudyData:
    """Return the data of a study that is resumed. Raises InputError if data have changed, or it cannot run here."""
    path = folder.path
    configs = recorded_configs(folder.study_json, record)
    check_devices(configs)
    check_nodes(configs.values())
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError(f"{path}: cannot write there, so nothing can be added to this study")
    with terminable():
        data = prepare_data(configs, _limits(record, None).start_s)
    for name, before in record.fingerprints.items():
        if data.fingerprints.get(name) != before:
            raise InputError(
                f"{path}: {name} changed since the study began, and the two must not be mixed; start a new study"
            )
    check_memory(data.needs, {arm.name for arm in record.arms if arm.control == PROFILED}, record.interleave, force)
    _warn_of_limits([configs[arm.name] for arm in record.arms if arm.control != PROFILED], record.interleave)
    return data


def _warn_of_limits(measured: list[TrainerConfig], interleave: str) -> None:
    for line in limit_warnings(measured, together=interleave == "slices"):
        print(f"warning: {line}", file=sys.stderr)


def _execute(
    folder: StudyFolder,
    record: StudyRecord,
    data: StudyData,
    options: StudyOptions,
    sequential: Sequential | None = None,
) -> Outcome:
    """Run the missing runs and write the final status; Ctrl-C and a spent budget keep finished runs."""
    until = options.until
    if until is not None:
        until.begin(folder.path, anew=True)
    interrupted, cut = False, None
    with terminable():
        try:
            record = replace(record, status="running")
            if options.load_check is not None and not all(_are_done(folder, record)):
                record = replace(record, notes=[*record.notes, *options.load_check.notes()])
            folder.write_study(record)
            record = _run_blocks(folder, record, data, options, sequential)
        except BudgetSpent as spent:
            cut = str(spent)
            if until is None:  # Otherwise the study keeps its planned length and can be completed.
                record = _end_after(record, _finished_blocks(folder, record))
            else:
                interrupted = until.stopped = True  # Nothing failed: it can be completed like an interrupted study.
            record = replace(record, notes=[*record.notes, f"the time limit was reached: {cut}"])
        except KeyboardInterrupt:  # From here on, the study can be reported and resumed.
            interrupted = True
            if sequential is not None:  # The total number of blocks is unknown.
                record = _end_after(record, _finished_blocks(folder, record))
            print("interrupted: finished runs are kept", file=sys.stderr)
        except BaseException:
            folder.write_study(replace(record, status="failed", ended_utc=now()))
            raise
        finally:
            if until is not None:
                until.end()
    status: Literal["interrupted", "done", "failed"] = "done" if all(_are_done(folder, record)) else "failed"
    status = "interrupted" if interrupted else status
    folder.write_study(replace(record, status=status, ended_utc=now()))
    if until is not None and status == "done":
        until.end(done=True)
    return Outcome(folder.path, status, cut)


def _are_done(folder: StudyFolder, record: StudyRecord) -> list[bool]:
    return [folder.is_done(name, block) for block, order in enumerate(record.order) for name in order]


def _run_blocks(
    folder: StudyFolder,
    record: StudyRecord,
    data: StudyData,
    options: StudyOptions,
    sequential: Sequential | None,
    blocks: Sequence[int] | None = None,
) -> StudyRecord:
    """Run the missing runs of ``blocks`` (None: all). Return ``record``, until ``sequential`` had enough."""
    until, ending = options.until, sequential or options.until
    limits = _limits(record, None if ending is None else ending.end_ns)
    repetitions = _repetitions(record, extra_warmup=options.extra_warmup)
    missing = {
        block: [name for name in order if not folder.is_done(name, block)]
        for block, order in enumerate(record.order)
        if blocks is None or block in blocks
    }
    todo = [name for names in missing.values() for name in names]
    if blocks is not None:
        print(f"{len(todo)} runs of {', '.join(f'block {block}' for block in blocks)}", file=sys.stderr)
    elif sequential is None:
        planned = f"{len(todo)} runs in {sum(map(bool, missing.values()))} blocks"
        print(planned if todo else "every run of this study is done", file=sys.stderr)
    else:
        print(f"blocks of {len(record.order[0])} runs, until the result is clear", file=sys.stderr)
    note: Callable[[], None] = (lambda: None) if until is None else until.note
    total = len(todo) if sequential is None else None
    progress = Progress(total, sum(repetitions[name].total_steps for name in todo), note)
    with _other_nodes(record, todo, limits) as nodes, progress if todo else nullcontext():
        runner = _BlockRunner(folder, record, data, repetitions, limits, progress, nodes)
        for block, names in missing.items():
            if names:
                runner.run(block, names)
            note()
            if sequential is not None and sequential.enough(folder, record, block + 1):
                return _end_after(record, block + 1)
    return record


def _repetitions(record: StudyRecord, *, extra_warmup: bool = True) -> dict[str, Repetitions]:
    """Return the planned repetitions by arm, with ``extra_warmup`` unless an older state cannot take it."""
    slice_steps = integer(record.scenario_text, "slice_steps")
    extra_warmup = extra_warmup and all(arm.code is None or arm.code.directory is not None for arm in record.arms)
    by_arm = {}
    for arm in record.arms:
        config = recorded_config(arm.config)
        plan = plan_repetitions(config, record.interleave, slice_steps)
        plan = replace(plan, most_extra=most_extra_steps(config) if extra_warmup else 0)
        by_arm[arm.name] = NO_REPETITIONS if arm.control == PROFILED else plan
    return by_arm


def _other_nodes(record: StudyRecord, todo: Sequence[str], limits: WaitLimits) -> AbstractContextManager[Nodes | None]:
    """Return a context manager that yields the other machines for runs of the arms ``todo``; None if they need none."""
    contents = [arm.config for arm in record.arms if arm.name in todo]
    configs = [recorded_config(content) for content in contents]
    return other_nodes(configs, lambda: [*OWN.preloaded, *modules_of(contents)], limits.start_s)


def _finished_blocks(folder: StudyFolder, record: StudyRecord) -> int:
    return sum(all(folder.is_done(name, b) for name in order) for b, order in enumerate(record.order))


def _code(arm: ArmRecord) -> Code | None:
    return None if arm.code is None else Code(**asdict(arm.code))


def environment_of(configs: Iterable[TrainerConfig]) -> JsonObject:
    """Return the facts of this environment; the commit is the user's if any run uses the user's code."""
    return record_user_environment() if any(config.user_functions for config in configs) else record_environment()


def _limits(record: StudyRecord, end_ns: int | None) -> WaitLimits:
    """Return the launcher's limits from the scenario. ``end_ns``: end of the study (CLOCK_MONOTONIC) or None."""
    limits = LimitsConfig.model_validate(section(record.scenario_text, "limits"))
    return WaitLimits(limits.start_s, limits.silence_s, end_ns)


def _end_after(record: StudyRecord, blocks: int) -> StudyRecord:
    return replace(record, order=record.order[:blocks], blocks=blocks)


class _BlockRunner:
    """Runner of the blocks of one study. ``nodes``: agents on other machines, for their ranks; None: no others."""

    def __init__(
        self,
        folder: StudyFolder,
        record: StudyRecord,
        data: StudyData,
        repetitions: dict[str, Repetitions],
        limits: WaitLimits,
        progress: Progress,
        nodes: Nodes | None = None,
    ) -> None:
        self._folder, self._record, self._data = folder, record, data
        self._repetitions, self._limits, self._progress, self._nodes = repetitions, limits, progress, nodes
        self._arms = {arm.name: arm for arm in record.arms}
        # Checked now, because a resumed study may differ from its start.
        self._environment = environment_of(recorded_config(arm.config) for arm in record.arms)

    def run(self, block: int, names: list[str]) -> None:
        """Run the arms ``names`` of ``block`` once each. The study's record says if their repetitions alternate."""
        session = session_of(self._record.id, f"{block}-{secrets.token_hex(3)}")
        processes = [self._process(name, block, session, position) for position, name in enumerate(names)]
        # Runs start one after the other if a regression check compares their startups, or on several machines, where
        # each run waits for its ranks.
        compared = any(arm.contest is not None for arm in self._record.arms)
        at_once = 1 if compared or self._nodes is not None else os.cpu_count() or 1
        run_block(processes, self._repetitions, self._record.interleave, self._progress, at_once)

    def _process(self, name: str, block: int, session: str, position: int) -> RunProcess:
        arm, record = self._arms[name], self._record
        run = RunRecord(
            arm=name,
            block=block,
            status="interrupted",
            control=arm.control,
            of=arm.of,
            session=session,
            position=position,
            interleave=record.interleave,
            # Each block has another order of the documents and other initial weights, equal for all its arms. Otherwise
            # the interval over blocks would not cover the influence of the data.
            config={**arm.config, "seed": integer(arm.config, "seed") + block},
            declared=arm.declared,
            environment=arm.environment or self._environment,
        )
        first = block == 0 and arm.code is None
        probes = probes_of(section(record.scenario_text, "probes"), arm.control, first=first)
        return RunProcess(run, self._folder, probes, self._limits, _code(arm), self._data.by_arm[name], self._nodes)


@contextmanager
def only_one(folder: StudyFolder, name: str = ".lock") -> Iterator[None]:
    """Lock the study by the file ``name`` within the context. Raises InputError if another process holds it."""
    with open(folder.path / name, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"{folder.path}: another process runs this study; wait for it") from error
        except OSError as error:  # Some network file systems have no locks.
            reason = error.strerror or str(error)
            print(f"warning: {folder.path} cannot be locked ({reason}): let no other process run it", file=sys.stderr)
        yield


def create_folder(out: Path, scenario: str) -> StudyFolder:
    """Create and return a new folder for a study of ``scenario`` under ``out``. Raises InputError if this fails."""
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    path = out / scenario / name
    try:
        path.mkdir(parents=True)
        (path / ".writable").touch()
        (path / ".writable").unlink()
    except OSError as error:
        raise cannot_write(f"--out {out}", error, "give a folder that can be written") from error
    return StudyFolder(path)
