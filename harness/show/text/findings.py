"""Texts for findings: causes that slowed the host, a device, or the steps of an attached program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from harness.explain.causes import (
    BREAKS,
    CODE,
    COMPILATION,
    EVALUATION,
    GC,
    GROWING,
    MEMORY,
    PADDING,
    SETTING,
    THREAD_LOCK,
    SlowCause,
    is_own_code,
    is_wait,
)
from harness.explain.policy import MIN_BLOCKS, TREND_STEPS_MIN
from harness.explain.statistics import Estimate
from harness.explain.unusual_steps import EndedCost
from harness.explain.wall import RESTART, START_UP, StepPart, maker_text
from harness.judge.diagnosis import padding_remedy
from harness.judge.doubts import DoubtKind
from harness.judge.probes.machine_load import DeviceFinding, HostFinding
from harness.judge.report_types import ArmReport, Diagnosis, DiagnosisKind, DiagnosisRemedy
from harness.show.policy import CAUSE_PLACES, EVERY_STEP_SHARE, SPENT_SHARE_MIN, WAIT_SHARE
from harness.show.words import amount, capitalised, count, duration, interval, number, part_of, percent, ratio

Texts = tuple[str, str, str]  # subject, finding, support
WORKERS_LIMIT = (
    "Steps also wait for loader workers, which work meanwhile: without this code that wait may grow by as much. Speed "
    "up the loading first."
)


def cause_texts(arm: ArmReport, step_ms: float) -> Iterator[Texts]:
    """Yield (subject, finding, what to do) for each kind of cause that costs enough of a step of ``step_ms``."""
    part = part_of(step_ms)
    for kind, texts in TEXTS.items():
        causes = [cause for cause in arm.causes if cause.kind == kind and _is_worth_a_line(cause, arm, step_ms)]
        if kind == GC and sum(cause.spent_share for cause in causes) < SPENT_SHARE_MIN:
            continue
        if causes:
            # Processes of one arm may differ in the place; put the largest first.
            subject, finding, support = texts(sorted(causes, key=lambda cause: -(cause.cost_ms or 0.0)), part)
            yield subject, finding, WORKERS_LIMIT if kind == CODE and _waits_for_workers(arm, step_ms) else support
    # Steps that compile launch nothing for seconds, so larger kernels do not help.
    longer_ms = sum((cause.longer_ms or 0.0) * cause.steps / cause.of for cause in arm.causes if cause.of)
    if arm.unseen is not None and arm.unseen.device and arm.totals.bound == "launch" and longer_ms < step_ms / 2:
        yield (
            "Launch-bound",
            "the device waits for the host to launch kernels",
            "Launch fewer and larger ones: larger micro-batches, torch.compile, or CUDA graphs "
            '(torch.compile(mode="reduce-overhead")).',
        )


def _waits_for_workers(arm: ArmReport, step_ms: float) -> bool:
    """Return True if steps wait for the arm's loader workers for at least :data:`SPENT_SHARE_MIN` of ``step_ms``."""
    waited_ms = sum(arm.totals.exposed_ms.values()) or arm.totals.phase_ms.get("fetch", 0.0)
    return bool(arm.workers) and waited_ms >= SPENT_SHARE_MIN * step_ms


def _is_worth_a_line(one: SlowCause, arm: ArmReport, step_ms: float) -> bool:
    match one.kind:
        case "code":
            return is_own_code(one) and one.least_share >= SPENT_SHARE_MIN
        case "padding":
            return one.ms is None or one.ms >= SPENT_SHARE_MIN * step_ms
        case "growing":
            return (one.low_ms or 0.0) >= SPENT_SHARE_MIN * step_ms
        case "device wait" | "copy":
            return one.ms is None or one.ms >= WAIT_SHARE * step_ms
        case "start-up":
            whole_ms = sum(part.ms for part in arm.wall.program) if arm.wall is not None else 0.0
            return (one.ms or 0.0) >= SPENT_SHARE_MIN * whole_ms
        case "retries" | "compiled":
            return one.steps > 0
        case "setting":  # An older study may have a kind without a text.
            return one.place in SETTINGS
        case _:
            return True


Part = Callable[[float], str]


def _wait(found: Sequence[SlowCause], part: Part) -> Texts:
    return (
        "Waits for the device",
        _places(found, part),
        "The device is idle until the next launch if nothing else is queued. Wait every N steps, or read the value of "
        "a step after the next step is launched.",
    )


def _copy(found: Sequence[SlowCause], part: Part) -> Texts:
    size = sum(cause.bytes for cause in found)
    if not size:
        return "Blocking copy", _places(found, part), "Copy with non_blocking=True, from pinned memory."
    return (
        "Blocking copy",
        f"{_size(size)} a step from pageable memory at {_places(found, part)}",
        "This includes the wait for queued work of the device. Use pin_memory=True in the DataLoader, and "
        "non_blocking=True in the copy.",
    )


def _pageable(found: Sequence[SlowCause], _part: Part) -> Texts:
    return (
        "Pageable memory",
        f"batches bring {_size(found[0].bytes)} a step in memory that is not pinned",
        "Copies of it to a device cannot run beside the host's work. Use pin_memory=True in the DataLoader, and "
        "non_blocking=True in the copy.",
    )


def _retries(found: Sequence[SlowCause], part: Part) -> Texts:
    (cause,) = found
    return (
        "Device memory",
        f"the allocator ran out of it and freed its cached blocks {count(round(cause.times), 'time')}, in "
        f"{cause.steps:,} of {count(cause.of, 'step')}{_longer(cause, part)}",
        "Use smaller batches, begin with the longest one, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    )


def _compiled(found: Sequence[SlowCause], part: Part) -> Texts:
    total = replace(
        found[0],
        ms=sum(cause.ms or 0.0 for cause in found),
        **{name: sum(getattr(cause, name) for cause in found) for name in ("times", "steps", "of", "rest_ms")},
    )
    return (
        "Compilation",
        f"{count(round(total.times), 'graph')} compiled in {total.steps:,} of "
        f"{count(total.of, 'step')}{_longer(total, part)}"
        + (f", mostly {total.place}{_code(total)}" if total.place else ""),
        "A new input shape, or a compiled function that runs for the first time: TORCH_LOGS=recompiles lists "
        "the former only, with reasons. For shapes, pad to one length or to a few, or compile with dynamic=True.",
    )


def _collected(found: Sequence[SlowCause], part: Part) -> Texts:
    largest, *_ = found
    total = replace(largest, spent_ms=sum(cause.spent_ms for cause in found))
    main_place = (
        f", most of it at {largest.place}{_code(largest)}"
        if largest.place and largest.spent_ms > total.spent_ms / 2
        else ""
    )
    return (
        "Garbage collection",
        f"{_spent(total, part)} in {count(round(sum(cause.times for cause in found)), 'collection')}{main_place}",
        REMEDIES["freeze"],
    )


def _spent(one: SlowCause, part: Part) -> str:
    return f"{part(one.step_ms)} a step ({percent(one.spent_share)})"


def _own_code(found: Sequence[SlowCause], part: Part) -> Texts:
    largest = found[0]
    return (
        "Own code",
        "; ".join(
            f"{_spent(cause, part)} {'just before' if cause.late else 'at'} {cause.place}{_code(cause)}"
            + (f", in {cause.called}" if cause.called else "")
            for cause in found[:CAUSE_PLACES]
        ),
        REMEDIES["shorter lock" if largest.called == THREAD_LOCK else "other thread"]
        if is_wait(largest.called)
        else "The step waits for it: do it less often, in another thread or process, or with less data.",
    )


def _growing(found: Sequence[SlowCause], part: Part) -> Texts:
    cause = found[0]
    figures = cause.figures
    hooks = ""
    remedy = "Look for a list, a graph or a file that each step adds to: it is read or walked in every later step."
    if "hooks_last" in figures:
        newest = f", the newest at {cause.place}" if cause.place else ""
        hooks = f"; {cause.called} hooks rose from {figures['hooks_first']:.0f} to {figures['hooks_last']:.0f}{newest}"
        remedy = "Register each hook once, before the loop, or call remove() on its handle."
    location = f", in {cause.phase}" if cause.phase else ", outside of all phases"
    return (
        "Steps get longer",
        f"from {part(figures['first_ms'])} to {part(figures['last_ms'])}{location}{hooks}"
        + ("" if cause.ms is None else f". That costs {part(cause.ms)} a step on average{_interval(cause, part)}"),
        remedy,
    )


def _started(found: Sequence[SlowCause], _part: Part) -> Texts:
    cause = found[0]
    skipped = cause.figures["skipped"]
    waited = f"{number((cause.ms or 0.0) / 1e3)} s in {maker_text(cause)}"
    if not skipped:
        return "First batch", f"the first step waits for it: {waited}", "Do what it needs once, before the training."
    return (
        "Skipped batches",
        f"{skipped:.0f} were made before the first step and not trained on: {waited}",
        "Skip rows in the sampler, or keep the loader's state with the checkpoint (a StatefulDataLoader does).",
    )


def _memory(found: Sequence[SlowCause], _part: Part) -> Texts:
    tightest = min(found, key=lambda cause: cause.figures["full_s"])  # Processes may grow at different places.
    figures = tightest.figures
    owner = f"that of the {tightest.place or 'process'}"
    return (
        "Memory grows",
        f"{owner} by {_size(round(figures['bytes_per_step']))} a step so far. At this rate none is free after another "
        f"{duration(figures['full_s'])}",
        "Look for what the dataset keeps of each row. A cache stops growing once all rows are in it, and so do the "
        "copies of Python objects that workers share: tensors or Arrow are not copied."
        if tightest.place
        else "Look for a list or a cache that each step adds to. A cache of the data stops growing after an epoch.",
    )


def _padding(found: Sequence[SlowCause], part: Part) -> Texts:
    (cause,) = found
    share, columns = cause.figures["share"], cause.figures["column_share"]
    remedy = REMEDIES[padding_remedy(cause)]
    return (
        "Padding",
        f"{percent(share)} of the positions train nothing, {percent(columns)} in columns of padding alone"
        + ("" if cause.ms is None else f". They take about {part(cause.ms)} of a step"),
        remedy,
    )


# (active setting, remedy) by the setting's name
SETTINGS = {
    "anomaly": (
        "anomaly detection of autograd is on",
        "Remove torch.autograd.set_detect_anomaly(True): it records a stack for each operation and checks each "
        "gradient.",
    ),
    "deterministic": (
        "deterministic algorithms are on",
        "Remove torch.use_deterministic_algorithms(True), unless runs have to agree bit by bit: others are faster.",
    ),
    "launch blocking": ("CUDA_LAUNCH_BLOCKING is set", "Unset it: the host waits for each kernel."),
    "profiler": ("a profiler of torch records all steps", "Stop it, or give it a schedule of a few steps."),
    "profile function": (
        "a function of sys.setprofile follows each call",
        "Stop the profiler of Python code (such as cProfile).",
    ),
    "trace function": ("a debugger or a coverage tool follows each line of Python", "Run the training without it."),
    "logs": ("TORCH_LOGS is set", "Unset it: each message of the compiler takes time."),
    "distributed debug": (
        "TORCH_DISTRIBUTED_DEBUG=DETAIL is set",
        "Unset it: each collective is checked by another one.",
    ),
    "unused parameters": (
        "find_unused_parameters=True walks the graph in each step",
        "Remove it if all parameters are used, or set static_graph=True.",
    ),
    "evaluation gradients": ("the evaluation makes graphs", "Evaluate within torch.no_grad()."),
    "gradient synchronization": (
        "gradients are synchronized in {passes:.2g} backward passes of each step",
        "Run all but the last of them within no_sync() of the DistributedDataParallel.",
    ),
}


def _setting(found: Sequence[SlowCause], _part: Part) -> Texts:
    settings = [(SETTINGS[cause.place], cause.figures) for cause in found]
    return (
        "Settings left on" if len(settings) > 1 else "Setting left on",
        "; ".join(text.format(**figures) for (text, _), figures in settings),
        " ".join(remedy for (_, remedy), _ in settings),
    )


def _broken(found: Sequence[SlowCause], _part: Part) -> Texts:
    last = found[0]
    breaks = count(round(last.figures["breaks"]), "time")
    return (
        "Graph breaks",
        f"torch.compile broke graphs {breaks} in functions that steps call, last at {last.place} ({last.code})",
        "TORCH_LOGS=graph_breaks lists each: move what cannot be compiled out of the model.",
    )


def _interval(one: SlowCause, part: Part) -> str:
    if one.low_ms is None or one.high_ms is None:
        return ""
    return f" ({part(one.low_ms)} to {part(one.high_ms)})"


TEXTS: dict[str, Callable[[Sequence[SlowCause], Part], Texts]] = {
    GC: _collected,
    GROWING: _growing,
    MEMORY: _memory,
    PADDING: _padding,
    START_UP: _started,
    CODE: _own_code,
    SETTING: _setting,
    BREAKS: _broken,
    "device wait": _wait,
    "copy": _copy,
    "pageable": _pageable,
    "retries": _retries,
    "compiled": _compiled,
}


def _places(found: Sequence[SlowCause], part: Part) -> str:
    return "; ".join(f"{_place(cause)}{'' if cause.ms is None else f': {part(cause.ms)} a step'}" for cause in found)


def _place(one: SlowCause) -> str:
    """Format the place of a cause, its code and how often it occurs: ``train.py:88 (`loss.item()`), every step``."""
    share = min(one.times, 1.0) if one.share is None else one.share
    if share < EVERY_STEP_SHARE:
        often = f"in {percent(share)} of the steps"
    else:
        often = "every step" if round(one.times) == 1 else f"{one.times:.2g} times a step"
    return f"{one.place}{_code(one)}, {often}"


def _code(one: SlowCause) -> str:
    return f" (`{one.code}`)" if one.code else ""


def _longer(one: SlowCause, part: Part) -> str:
    longer_ms = one.longer_ms
    return (
        "" if longer_ms is None or longer_ms <= 0 else f": such a step takes {part(longer_ms)} longer than the others"
    )


def _size(size: int) -> str:
    return f"{size / 1e6:.3g} MB"


NAMES = {
    "main": "the trainer",
    "loaders": "the loader workers",
    "ranks": "the other ranks",
    "sampler": "the sampling process",
}  # by role


def host_finding(found: HostFinding) -> str:
    """Return a finding about the host, such as throttling or page faults, as one line without a full stop."""
    value, limit = found.value, found.limit or 0.0
    name = NAMES.get(found.role, found.role)
    without_core = f"threads of {name} were runnable without a core for {number(value)} s in every second"
    match found.kind:
        case "quota throttled":
            return (
                f"throttled by the cgroup's CPU quota of {number(limit)} cores in {percent(value)} of "
                "its periods: nothing ran until the next period"
            )
        case "threads over quota":
            return f"torch computes with {value:.0f} threads under a CPU quota of {number(limit)} cores"
        case "near the memory limit":
            return (
                f"{number(value / 1e9)} GB of a memory limit of {number(limit / 1e9)} GB were in use, "
                "page cache included: data may be dropped soon after it is read"
            )
        case "waited for memory":
            return f"some process waited for memory {percent(value)} of the time"
        case "waited for the disk":
            return f"some process waited for the disk {percent(value)} of the time"
        case "waited for a core":
            return f"{without_core}: there were more runnable threads than cores"
        case "waited for the quota":
            return f"{without_core}, time held back by the quota included"
        case "read from disk":
            rate = number(value / 1e6)
            return f"{name} read {rate} MB/s from disk during measured steps: it was not in the page cache"
        case "page faults":
            return (
                f"{name} had {number(value)} major page faults a second during measured steps, each a wait for storage"
            )
        case "other processes":
            peak = "" if found.limit is None else f" (at most {number(limit)})"
            return f"other processes used {number(value)} cores{peak}"
        case "stolen cores":
            return f"the hypervisor kept {number(value)} cores for others"
        case "missed readings":
            return f"{value:.0f} of {limit:.0f} host readings were missed: the sampler did not get a core in time"


def device_finding(found: DeviceFinding) -> str:
    """Return a finding about a device, such as a falling clock, as one line without a full stop."""
    value, second = found.value, found.other
    match found.kind:
        case "clock fell":
            return f"SM clock fell from {value:,.0f} to {second:,.0f} MHz during the measured steps"
        case "slowed down":
            return f"throttled by {found.reason} in {percent(value)} of the samples"
        case "other processes":
            memory = number(second / 1e9)
            processes = f"{value:.0f} other process{'' if value == 1 else 'es'}"
            return f"{processes} computed on it, holding {memory} GB of its memory"
        case "missed readings":
            return f"{value:.0f} of {second:.0f} readings were missed"


TITLES: dict[DiagnosisKind, str] = {
    "input-bound": "INPUT-BOUND",
    "checkpoint-bound": "CHECKPOINT-BOUND",
    "own code": "OWN CODE",
    "garbage collection": "GARBAGE COLLECTION",
    "evaluation-bound": "EVALUATION-BOUND",
    "recompiling": "RECOMPILING",
    "cores too few": "CORES TOO FEW",
    "synchronization-bound": "SYNCHRONIZATION-BOUND",
    "interpreter lock": "INTERPRETER LOCK",
    "growing": "STEPS GET LONGER",
    "padding": "PADDING",
    "compute-bound": "COMPUTE-BOUND",
    "unknown": "UNKNOWN",
}
REMEDIES: dict[DiagnosisRemedy, str] = {
    "advice": "What to try is below.",
    "persistent workers": "Keep the loader workers alive: persistent_workers=True, in a DataLoader that is made once.",
    "fewer restarts": "Make the DataLoader once, and epochs longer: each begins with an empty queue.",
    "faster sampler": "Draw fewer items, or draw them faster: loader workers cannot take the sampler over.",
    "tokenize before": "Tokenize once, before the training.",
    "whole batches": "Read a batch at once: give the dataset __getitems__(), or a BatchSampler with batch_size=None.",
    "loading first": "Speed up the loading first: no step can be shorter than the workers take for its batch.",
    "more workers": "Try more loader workers: they wait for a store, which may serve several at a time.",
    "more shards": "Give each loader worker items: as many shards as workers, or more.",
    "fewer objects": "Send fewer and larger tensors: receiving each one takes time.",
    "even workers": "Loader worker {worker} takes {ms} for a batch, the others typically {others_ms}: give workers "
    "equal work (shards, or items of like cost).",
    "load ahead": "A read of {ms} comes about every {batches} batches: load the next file or shard ahead, in a thread.",
    "use workers": "Make batches in loader workers (num_workers), on free cores: the training loop makes them itself.",
    "use one worker": "Make batches in a loader worker (num_workers=1), on a free core: the training loop makes them "
    "itself. Several workers of an iterable dataset each have all items unless it splits them.",
    "less work": "Make batches with less work: it takes CPU time, not storage.",
    "faster storage": "Read from faster storage, or several items at once: reading mostly waits.",
    "save less often": "Save less often, or in another thread or process.",
    "less often": "Do it less often, in another thread or process, or with less data.",
    "other thread": "It waits there for another thread or process: for batches, if that one makes them.",
    "shorter lock": "It waits there for a lock that another thread holds: let that one hold it for less of the time.",
    "freeze": "Call gc.freeze() once the data is loaded, and collect every few hundred steps at most.",
    "evaluate less often": "Evaluate less often, or on fewer batches.",
    "fewer shapes": "Pad to one length or to a few, or compile with dynamic=True. TORCH_LOGS=recompiles has reasons.",
    "values in tensors": "The compiled code has that value as a constant: keep it in a tensor, or do not change it.",
    "free cores": "Use fewer threads and workers, more cores, or a machine that nothing else uses.",
    "fewer threads": "Use cores / ranks threads in each rank: torch.set_num_threads() or OMP_NUM_THREADS.",
    "fewer processes": "Run fewer other threads and processes in it, or give it more cores: the training has too few.",
    "no gradients": "Evaluate within torch.no_grad(): each batch makes a graph that nothing uses.",
    "no sync": "Run all backward passes but the last of a step within no_sync() of the DistributedDataParallel.",
    "other ranks": "Find the rank that comes late, and do rare slow work in the same step on all ranks.",
    "less exchange": "All ranks are blocked as long: by the exchange, or by code that waits in forward or backward. "
    "Exchange less often (several backward passes within no_sync()) or less (a hook for bfloat16).",
    "other process": "Do it in a process: a thread that runs Python holds the lock that the training needs.",
    "find the growth": "Look for what grows: a hook, a graph or a list that each step adds to, or the inputs.",
    "pad less": 'Pad to the longest row of each batch (padding="longest") instead of to a fixed length.',
    "batch alike": "Put rows of similar length into one batch (group_by_length), or pack several into one row.",
    "model": "Faster data loading would not help: make the model, its kernels or its precision faster.",
    "profile": "Find the place: harness exec --profile py-spy.",
    "sample alone": "Run harness exec on it alone: that samples its lines, which --against does not.",
}


def diagnosis_remedy(kind: DiagnosisRemedy, figures: Mapping[str, float]) -> str:
    """Return the advice for a diagnosis. ``figures``: numbers for its text; names that end in "ms" are milliseconds."""
    part = part_of(max((figure for name, figure in figures.items() if name.endswith("ms")), default=0.0))
    texts = {name: part(figure) if name.endswith("ms") else f"{figure:.0f}" for name, figure in figures.items()}
    return REMEDIES[kind].format(**texts)


LABELS = {
    "data": "data",
    "code": "own code",
    "lock": "interpreter lock",
    "long": "long steps",
    "evaluation": "evaluation",
    "compile": COMPILATION,
}  # by kind of part


def part_label(part: StepPart) -> str:
    """Return the name of a step's part for tables and bars: ``data: tokenize``, ``own code: train.py:88``."""
    label = LABELS.get(part.kind, part.name)
    return part.name if part.name == label else f"{label}: {part.name}"


def diagnosis_text(one: Diagnosis, step_ms: float) -> str:
    """Return sentences on what a diagnosed part of the step costs, where it lies, and what its removal would save."""
    part = part_of(step_ms)
    text = f"{part(one.ms.median)}{_between(one.ms, step_ms)} {_share(one)}{_where(one, step_ms)}."
    if one.kind == "compute-bound":
        upper = None if one.saving is None else one.saving.ci_high or one.saving.median
        return text if upper is None else f"{text} Without any data work a step would be up to {ratio(upper)} as fast."
    return text + _saving(one)


def finding_text(one: Diagnosis, step_ms: float) -> str:
    """Return a diagnosis that is not the main one as a finding: title, cost, saving and remedy, without intervals."""
    cost = f"{part_of(step_ms)(one.ms.median)} {_share(one)}{_where(one, step_ms)}"
    if one.ended is not None:
        cost = f"{cost}, {_ended_text(one.ended)}"
    saving = "" if one.saving is None else f" ({_times(one)} as fast)"
    return f"{TITLES[one.kind].capitalize()}: {cost}{saving}. {diagnosis_remedy(one.remedy, one.figures)}"


def _share(one: Diagnosis) -> str:
    return f"of a step{' by the clock' * (one.kind == 'cores too few')} ({percent(one.share)})"


def _where(one: Diagnosis, step_ms: float) -> str:
    part = one.part
    mostly = "" if one.share_of_part > ALL_OF_IT else f", {part_of(step_ms)(part.ms.median)} of it"
    match part.kind:
        case "code" | "lock" | "evaluation" | "compile" if part.name not in (EVALUATION, COMPILATION):
            called = f", in {part.called}" if part.called else ""
            code = f" (`{shortened(part.code)}`)" if part.code else ""
            where = f"{mostly} {'just before' if part.late else 'at'} {part.name}{code}{called}"
            held = one.holder
            return where if held is None else f"{where}, while another thread is at {held.place}{_code(held)}"
        case "data":
            stage = "restarts of the loader" if part.name == RESTART else part.name
            code = f": `{shortened(part.code)}`" if part.code else ""
            return f"{mostly} in {stage}" + (f" ({part.called}{code})" if part.called else "")
        case "long":
            return f"{mostly} in a few long steps, in {part.name}: cause not recorded"
        case "phase":
            location = "outside of all phases"
            location += ": lines were not sampled" if one.remedy == "sample alone" else ": no line takes much of it"
            packed = f" (batches are packed by {part.called})" if one.kind == "padding" and part.called else ""
            return f"{mostly} {location if part.name == 'other' else f'in {part.name}'}{packed}"
        case _:
            return ""


CODE_LONGEST = 44  # characters of a line of code
WIDE_TIMES = 4  # upper / lower end of an interval; the upper end of a wider one is not shown
LARGEST_TIMES = 20  # times as fast; larger figures from a few steps are meaningless
ALL_OF_IT = 0.99  # share of the cost; a place with more than this is named as the only one


def shortened(code: str) -> str:
    """Return ``code``; a line of more than :data:`CODE_LONGEST` characters is cut and ends in "..."."""
    return code if len(code) <= CODE_LONGEST else f"{code[: CODE_LONGEST - 3]}..."


def _between(ms: Estimate, step_ms: float) -> str:
    if ms.ci_low is None or ms.ci_high is None:
        return ""
    return f" ({amount(ms.ci_low, step_ms)} to {part_of(step_ms)(ms.ci_high)})"


def _ended_text(one: EndedCost) -> str:
    steps = f"up to step {one.last}" if one.from_start else f"in steps {one.first} to {one.last}"
    return f"only {steps} of {one.measured}, none since"


def _saving(one: Diagnosis) -> str:
    if one.ended is not None:
        return f" {capitalised(_ended_text(one.ended))}."
    if one.saving is None:
        return ""
    low, high = one.saving.ci_low, one.saving.ci_high
    if _is_lower_bound(one.saving):
        bounds = ""
    elif low is not None and (high is None or (high > WIDE_TIMES * low and not one.at_most)):
        bounds = f" (at least {ratio(low)})" if 1 < low < LARGEST_TIMES else ""
    else:
        bounds = "" if low is None or high is None or high > WIDE_TIMES * low else f" ({interval(one.saving)})"
    assumed = ", if forward and backward take time by the position" if one.kind == "padding" else ""
    return f" Without it a step would be {_times(one)} as fast{bounds}{assumed}."


def _times(one: Diagnosis) -> str:
    """Return the saving as a ratio, ``1.82x``, marked as a bound or as "about"; "" if unknown."""
    saving = one.saving
    if saving is None:
        return ""
    if saving.median > LARGEST_TIMES:
        return f"over {LARGEST_TIMES}x"
    sure = "up to " if one.at_most else "about " if saving.ci_low is None else "at least " * _is_lower_bound(saving)
    return f"{sure}{ratio(saving.median)}"


def _is_lower_bound(saving: Estimate) -> bool:
    return saving.ci_high is None and saving.ci_low == saving.median


_TRUST: Mapping[DoubtKind, Callable[[ArmReport], str]] = {
    "no core": lambda arm: (
        f"the machine was busy. The main thread had no core for {percent(arm.waiting)} of the time: it is listed as "
        "its own part, and small parts may be inaccurate. Repeat on a free machine."
    ),
    "ranks": lambda _: "ranks wait for one another, so a saving of one rank is not a saving of all.",
    "device": lambda _: "times are the host's. Forward and backward are launched there, and the device may work later.",
}


def trust_text(arm: ArmReport) -> str:
    """Return a sentence on how far the arm's verdict card can be trusted: busy machine, several ranks, few steps."""
    doubts = () if arm.unseen is None else arm.unseen.doubts()
    first = next((entry.kind for entry in doubts if entry.kind in _TRUST), None)
    if first is not None:
        return f"Trust: {_TRUST[first](arm)}"
    if arm.blocks < MIN_BLOCKS:
        return f"Trust: no intervals, as {count(arm.blocks, 'block')} are too few. Measure more steps or repeats."
    steps = count(arm.totals.steps, "step")
    few_steps = arm.totals.steps < TREND_STEPS_MIN
    longer = f" Steps that get longer are found from {TREND_STEPS_MIN} steps on." if few_steps else ""
    return f"Trust: {steps} of one run, so intervals leave out what differs from run to run.{longer}"
