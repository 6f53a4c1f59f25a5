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
    """Division of a run's measured steps: ``count`` repetitions of ``warmup`` and ``steps`` measured ones.

    ``most_extra``: warm-up steps more that each may take (``launch.more_warmup``).
    """

    count: int
    warmup: int
    steps: int
    most_extra: int = 0

    @property
    def total_steps(self) -> int:
        """Without extra warm-up steps, which most runs do not need."""
        return self.count * (self.warmup + self.steps)


# Most steps of a repetition with ``interleave: runs``: a recorder holds about 3 KiB a batch until the repetition ends.
MAX_PLANNED_BATCHES = 10_000
NO_REPETITIONS = Repetitions(0, 0, 0)  # for a profiled run


def plan_repetitions(config: TrainerConfig, interleave: str, slice_steps: int) -> Repetitions:
    """Plans repetitions with at least ``config.steps`` measured steps in all.

    A repetition begins with workers x prefetch + 1 warm-up steps. The first use batches that were built or begun before
    the run was suspended, so they say nothing about the loader. One more step warms the caches. What they leave of
    prefetched batches, more of them use up (``launch.more_warmup``): how many is known as it runs.

    With ``interleave: runs`` a short run is one repetition. A long one pauses between repetitions, as an interleaved
    run does: its recorder writes what it holds only then. No step is measured meanwhile, nor are the warm-up steps
    that follow.
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
    """Run ``processes`` in the order given. Report a run that fails and go on with the others.

    End every process in any case (KeyboardInterrupt included).
    """
    measured = [process for process in processes if not process.profiled]
    together = [measured] if interleave == "slices" and measured else [[process] for process in measured]
    together += [[process] for process in processes if process.profiled]
    servers = _ForkServers(modules_of([process.record.config for process in processes]))
    try:
        for group in together:
            try:
                _take_repetitions(group, servers, planned, progress, most_starting)
            finally:
                for process in group:
                    process.kill()
    finally:
        servers.close()


class _ForkServers:
    """One fork server, or one for each side where sides run states of the code; started when its first run is."""

    def __init__(self, modules: list[str]) -> None:
        self._modules = modules
        self._started: dict[tuple[Code, bool] | None, ForkServer] = {}

    def of(self, process: RunProcess) -> ForkServer:
        # Two states also differ by the luck of their fork servers (memory layout): so must a baseline and its A/A
        # control.
        key = None if process.code is None else (process.code, process.record.control == "a-a")
        if (started := self._started.get(key)) is not None and started.ended:  # killed, and its runs with it
            started.close()
            del self._started[key]
        if key not in self._started:
            self._started[key] = ForkServer(self._modules, process.code)
        return self._started[key]

    def close(self) -> None:
        for server in self._started.values():
            server.close()


def modules_of(configs: Iterable[JsonObject]) -> list[str]:
    """Return the modules that runs of these import, besides those of every run (see launch.protocol)."""
    modules = ["pyarrow.parquet"]
    computing = [config for config in configs if _computes(config)]
    if computing:
        modules += ["torch.optim", "trainer.model"]
        # The first optimizer imports it, 1.3 s in each run. Whether it asks a device anything, which no process may
        # before it forks, was looked at without one only.
        modules += [] if has_nvidia_driver() else ["torch._dynamo"]
        modules += sorted({module for config in computing for module in _model_modules(section(config, "model"))})
        if any(_sharded(config) for config in computing) and not has_nvidia_driver():
            modules.append("torch.distributed.fsdp")  # 3 s, likewise
    return modules


def _computes(config: JsonObject) -> bool:
    """True if the run builds a torch model: not a control without compute, not an emulated device."""
    compute = section(config, "compute")
    return compute["work"] == "model" and isinstance(compute["device"], str)


def _sharded(config: JsonObject) -> bool:
    launch = config.get("launch")
    return isinstance(launch, dict) and launch["parallel"] == "fsdp"


def _model_modules(model: JsonObject) -> list[str]:
    """Return the modules of transformers that this model imports, as far as its configuration says."""
    if (preset := model.get("preset")) is not None:
        family = str(model["family"] or PRESETS[str(preset)]["family"])
        return [_modeling(family)]
    auto = "transformers.models.auto.modeling_auto"
    try:
        files = model_files(ModelConfig.model_validate(model))
    except (InputError, ValueError):  # its run reports the error
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
        """Call one of the process's methods; False if the run failed at it."""
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
    taken: dict[str, int] = {}  # the most extra warm-up steps of an arm and its controls
    for repetition in range(max(planned[process.record.arm].count for process in processes)):
        # There and back again (ABBA): a drift of the machine's speed hits every arm alike.
        for process in list(alive if repetition % 2 == 0 else reversed(alive)):
            plan = planned[process.record.arm]
            if repetition >= plan.count:
                continue
            progress.repetition(process.record.arm, process.record.block, repetition, plan.count)
            process.resume()
            arm = process.record.of or process.record.arm
            # A run that records no batches cannot know how many it needs: it takes as many as other runs of its arm.
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
