"""Runs one block: every arm once, in interleaved repetitions while all stay alive (slices) or one by one (runs)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from harness.launch.code import Code
from harness.launch.fork_server import ForkServer
from harness.launch.process import RunFailed, RunProcess
from harness.launch.progress import Progress
from harness.machine.environment import has_nvidia_driver
from harness.study.contract import BARE
from trainer.config import PRESETS, ModelConfig, TrainerConfig
from trainer.errors import InputError
from trainer.json_types import JsonObject, section
from trainer.model_files import model_files


@dataclass(frozen=True)
class Repetitions:
    """A run's measured steps: ``count`` repetitions of ``steps``, each after ``warmup`` to ``most_extra`` more."""

    count: int
    warmup: int
    steps: int
    most_extra: int = 0

    @property
    def total_steps(self) -> int:
        """Number of steps of all repetitions, with fixed warm-up steps but without extra ones (``most_extra``)."""
        return self.count * (self.warmup + self.steps)


# Maximum batches of a repetition with ``interleave: runs``: a recorder keeps about 3 KiB per batch until its end.
MAX_PLANNED_BATCHES = 10_000
NO_REPETITIONS = Repetitions(0, 0, 0)  # for a profiled run


def plan_repetitions(config: TrainerConfig, interleave: str, slice_steps: int) -> Repetitions:
    """Return the repetitions of a run of ``config``, with at least ``config.steps`` measured steps in all. A repetition
    begins with workers x prefetch + 1 warm-up steps: batches begun before the run was suspended do not measure the
    loader, and one step warms the caches. With "runs", only a long run pauses, so that its recorder can write its rows.
    """
    warmup = config.data.workers * config.data.prefetch + 1
    if interleave == "runs":
        most_steps = max(1, MAX_PLANNED_BATCHES // config.optimizer.accumulation)
        steps = math.ceil(config.steps / math.ceil(config.steps / most_steps))
        return Repetitions(math.ceil(config.steps / steps), warmup, steps)
    return Repetitions(math.ceil(config.steps / slice_steps), warmup, slice_steps)


def run_block(
    processes: list[RunProcess],
    planned: dict[str, Repetitions],
    interleave: str,
    progress: Progress,
    most_starting: int,
) -> None:
    """Run all ``processes`` of a block, profiled ones last. Report a failed run and continue. All processes end, even
    after an error. ``planned``: repetitions by arm. ``most_starting``: maximum number of processes that start at a
    time.
    """
    measured = [process for process in processes if not process.profiled]
    groups = [measured] if interleave == "slices" and measured else [[process] for process in measured]
    groups += [[process] for process in processes if process.profiled]
    servers = _ForkServers(modules_of([process.record.config for process in processes]))
    try:
        for group in groups:
            try:
                _take_repetitions(group, servers, planned, progress, most_starting)
            finally:
                for process in group:
                    process.kill()
    finally:
        servers.close()


class _ForkServers:
    """Fork servers of one block, one for each state of the code, and another one for its A/A controls."""

    def __init__(self, modules: list[str]) -> None:
        self._modules = modules
        self._started: dict[tuple[Code, bool] | None, ForkServer] = {}

    def of(self, process: RunProcess) -> ForkServer:
        # Two fork servers differ at random (memory layout), which affects the comparison of two states. So a baseline
        # and its A/A control have different servers, too.
        key = None if process.code is None else (process.code, process.record.control == "a-a")
        if key in self._started and self._started[key].ended:  # The server was killed, together with its runs.
            self._started.pop(key).close()
        if key not in self._started:
            self._started[key] = ForkServer(self._modules, process.code)
        return self._started[key]

    def close(self) -> None:
        for server in self._started.values():
            server.close()


def modules_of(configs: Iterable[JsonObject]) -> list[str]:
    """Return the modules to import before runs of ``configs`` are forked, except those that every run imports."""
    modules = ["pyarrow.parquet"]
    computing = [config for config in configs if _computes(config)]
    if computing:
        modules += ["torch.optim", "trainer.model"]
        # The first optimizer imports it, which takes 1.3 s in each run. A process must not use a device before it
        # forks. That this import does not use one was checked only on a machine without a device.
        modules += [] if has_nvidia_driver() else ["torch._dynamo"]
        modules += sorted({module for config in computing for module in _model_modules(section(config, "model"))})
        if any(_sharded(config) for config in computing) and not has_nvidia_driver():
            modules.append("torch.distributed.fsdp")  # takes 3 s, with the same restriction
    return modules


def _computes(config: JsonObject) -> bool:
    """True if the run builds a torch model: False for controls without compute and for emulated devices."""
    compute = section(config, "compute")
    return compute["work"] == "model" and isinstance(compute["device"], str)


def _sharded(config: JsonObject) -> bool:
    launch = config.get("launch")
    return isinstance(launch, dict) and launch["parallel"] == "fsdp"


def _model_modules(model: JsonObject) -> list[str]:
    """Return the modules of transformers that the configured ``model`` will import, as far as they are known."""
    if (preset := model.get("preset")) is not None:
        family = str(model["family"] or PRESETS[str(preset)]["family"])
        return [_modeling(family)]
    auto = "transformers.models.auto.modeling_auto"
    try:
        files = model_files(ModelConfig.model_validate(model))
    except (InputError, ValueError):  # The run itself reports the error.
        return [auto]
    if files is None:
        return [auto]
    family = files.model_type.replace("-", "_")
    transformers = find_spec("transformers")
    places = () if transformers is None else (transformers.submodule_search_locations or ())
    is_installed = any(Path(place, "models", family, f"modeling_{family}.py").is_file() for place in places)
    return [auto, _modeling(family)] if is_installed else [auto]


def _modeling(family: str) -> str:
    return f"transformers.models.{family}.modeling_{family}"


def _take_repetitions(
    processes: list[RunProcess],
    servers: _ForkServers,
    planned: dict[str, Repetitions],
    progress: Progress,
    most_starting: int,
) -> None:
    alive: list[RunProcess] = []

    def survives(process: RunProcess, action: Callable[[], None]) -> bool:
        """Call ``action``, a method of the process. Return False, and report the failure, if the run failed in it."""
        try:
            action()
        except RunFailed as failure:
            progress.failed(process.record.arm, process.record.block, str(failure))
            return False
        return True

    waiting = list(processes)
    starting: list[RunProcess] = []
    while waiting or starting:
        while waiting and len(starting) < most_starting:
            starting.append(waiting.pop(0))
            progress.starting(starting[-1].record.arm, starting[-1].record.block)
            if not survives(starting[-1], partial(starting[-1].start, servers.of(starting[-1]))):
                starting.pop()
        process = starting.pop(0) if starting else None
        if process is not None and survives(process, process.wait_ready):
            process.suspend()
            alive.append(process)
    for process in [run for run in alive if run.profiled]:
        process.resume()
        if not survives(process, process.profile):
            alive.remove(process)
    taken: dict[str, int] = {}  # maximum number of extra warm-up steps, over the runs of an arm and its controls
    for repetition in range(max(planned[process.record.arm].count for process in processes)):
        # The order alternates (ABBA), so a drift of the machine's speed affects every arm equally.
        for process in list(alive if repetition % 2 == 0 else reversed(alive)):
            plan = planned[process.record.arm]
            if repetition >= plan.count:
                continue
            progress.repetition(process.record.arm, process.record.block, repetition, plan.count)
            process.resume()
            arm = process.record.of or process.record.arm
            # A run without recorded batches cannot tell how many it needs. It takes as many as the runs of its arm.
            blindly = taken.get(arm, 0) if process.record.control == BARE else 0
            repeat = partial(process.repeat, repetition, plan.warmup + blindly, plan.steps, plan.most_extra)
            if survives(process, repeat):
                process.suspend()
                progress.stepped(plan.warmup + plan.steps, blindly + process.extra_steps)
                taken[arm] = max(taken.get(arm, 0), process.extra_steps)
            else:
                alive.remove(process)
    for process in alive:
        process.resume()
        if survives(process, process.finish):
            progress.finished(process.record.arm, process.record.block)
