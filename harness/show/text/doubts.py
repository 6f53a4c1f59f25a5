"""Texts for doubts: undeclared differences, problems of a study, and reasons against a prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from harness.explain.policy import MIN_BLOCKS
from harness.judge.confounds import Confound, ConfoundKind
from harness.judge.doubts import (
    Doubt,
    DoubtKind,
    LeadRemedy,
    ProbeProblem,
    Remedy,
    RemedyKind,
    RunFailure,
    StudyProblem,
)
from harness.judge.policy import COARSE_RESOLUTION, ENOUGH_BLOCKS, OTHER_CORES_MAX
from harness.show.policy import DOUBLED_SPEED, LOAD_ALIKE_CORES, RUNS_NAMED
from harness.show.words import blocks_named, count, listing, number, percent, percent_range, ratio

ASK_FOR = ENOUGH_BLOCKS  # number of blocks to recommend if there are too few


def confound_lines(found: Iterable[Confound]) -> list[str]:
    """Return a line for each confound (undeclared difference between arms), without a full stop."""
    return [_TEXTS[confound.kind](confound) for confound in found]


def _useful(one: Confound) -> str:
    base_share, other_share = one.values
    base, candidate = one.names
    return (
        f"useful tokens: {base} trains on {percent(base_share)} of its positions, {candidate} on {percent(other_share)}"
    )


def _other_batches(one: Confound) -> str:
    base_tokens, other_tokens = one.values
    base, candidate = one.names
    unit = "trained tokens" if one.key == "trained_tokens" else "positions"
    return (
        f"other batches: {base_tokens:,.0f} {unit} a step of {base}, {other_tokens:,.0f} of {candidate}, although no "
        "setting differs: part of the difference may be due to the batches"
    )


def _other_steps(one: Confound) -> str:
    base_steps, other_steps = one.values
    base, candidate = one.names
    return (
        f"other steps: {base_steps:,} in a run of {base}, {other_steps:,} of {candidate}; by the first "
        f"{min(base_steps, other_steps):,} of both, steps of {candidate} are {ratio(one.ratio)} as fast"
    )


def _load(one: Confound) -> str:
    base_load, other_load = one.values
    base, candidate = one.names
    if abs(base_load - other_load) < LOAD_ALIKE_CORES:
        return (
            f"host load by other processes: {max(base_load, other_load):.2f} cores during both {base} and {candidate}"
        )
    return f"host load by other processes: {base_load:.2f} cores during {base}, {other_load:.2f} during {candidate}"


def _clock(one: Confound) -> str:
    base, other = one.values
    return f"device {one.device}: SM clock {base:,.0f} MHz during {one.names[0]}, {other:,.0f} during {one.names[1]}"


def _throttled(one: Confound) -> str:
    base_share, other_share = one.values
    return (
        f"device {one.device}: throttled by {one.key} in {percent(base_share)} of the samples during {one.names[0]}, "
        f"{percent(other_share)} during {one.names[1]}"
    )


def _against(one: Confound) -> str:
    return f"{one.key} is {one.values[0]!r} against {one.values[1]!r}"


def _losses(one: Confound) -> str:
    base_loss, other_loss = one.values
    text = (
        f"losses differ: {base_loss:.3f} of {one.names[0]} against {other_loss:.3f} of {one.names[1]} at the same steps"
    )
    if one.explained:
        return f"{text}, because {one.names[1]} trains on a different number of tokens"
    return f"{text}: the arms do not train the same"


def _repeated(one: Confound) -> str:
    base_share, other_share = one.values
    base, candidate = one.names
    return (
        f"repeated rows: {percent(base_share)} of the training rows of {base} are repeats, {percent(other_share)} of "
        f"those of {candidate}: the arms do not train the same"
    )


def _lead(one: Confound) -> str:
    parts = [
        f"the steps of {name} were up to {percent(share)} faster than later steps"
        for name, share in zip(one.names, one.values, strict=True)
        if share
    ]
    return f"work prepared before the measured steps (prefetched batches or queued work): {' and '.join(parts)}"


_TEXTS: Mapping[ConfoundKind, Callable[[Confound], str]] = {
    "diverged": lambda confound: (
        f"loss of {confound.key} diverged: NaN, infinite or far above its start in measured steps"
    ),
    "losses": _losses,
    "repeated data": _repeated,
    "lead": _lead,
    "mixed data": lambda confound: (
        f"{confound.key} differs between blocks of {confound.names[0]}: its data changed during the study"
    ),
    "mixed code": lambda confound: (
        f"the code of the {confound.key.removesuffix('_fingerprint')} differs between blocks of {confound.names[0]}: "
        "it was edited during the study"
    ),
    "configuration": lambda confound: f"configuration: {_against(confound)}",
    "fact": _against,
    "environment": lambda confound: f"environment: {_against(confound)}",
    "useful tokens": _useful,
    "other batches": _other_batches,
    "other steps": _other_steps,
    "host load": _load,
    "sessions": lambda confound: f"not run side by side: different sessions in {blocks_named(confound.blocks)}",
    "unfinished": lambda confound: f"{confound.key} did not finish {blocks_named(confound.blocks)}",
    "block counts": lambda confound: (
        f"{confound.names[0]} has {count(confound.values[0], 'finished block')}, {confound.names[1]} has "
        f"{confound.values[1]}"
    ),
    "compared blocks": lambda confound: (
        f"compared over {confound.values[0]} of {count(confound.values[1], 'planned block')}"
    ),
    "SM clock": _clock,
    "throttled": _throttled,
    "other processes": lambda confound: f"device {confound.device}: other processes computed on it",
}


# Texts by the part of a run's record that a replay lacks.
GAPS: Mapping[str, str] = {
    "no run": "no run of this arm has finished",
    "no tables": "no finished run with tables to replay",
    "ranks": "its ranks wait for one another, but replay models one rank",
    "no times": "its steps have no times to replay",
    "no measured step": "it has no measured step to replay",
    "damaged spans": "a span ends before it starts, so its spans table is damaged",
    "no fetch": "no fetch span was recorded",
    "too far ahead": "too many batches would be in flight (workers x prefetch)",
    "no shared block": "no block in which both the run and the data-only run finished",
}


def doubt_text(one: Doubt) -> str:
    """Return the doubt as a clause without a full stop. ``its`` in the text refers to the arm."""
    return DOUBTS[one.kind](one)


def too_noisy_text(cause: Doubt | None) -> str:
    """Return a clause that not even a 2x change would show, with the cores that others used, if many."""
    users = ""
    if cause is not None and cause.cores is not None and cause.cores[0] > OTHER_CORES_MAX:
        users = f": others used {number(cause.cores[0])} of {number(cause.cores[1])} cores"
    return f"this run was too noisy to see even a 2x change{users}"


def unseen_text(share: float | None) -> str:
    """Return a clause on the largest change that was not detectable; None: :data:`COARSE_RESOLUTION`."""
    if share is not None and share >= DOUBLED_SPEED:
        return "the runs varied too much to show even a 2x change"
    return f"a change of up to {percent(COARSE_RESOLUTION if share is None else share)} could not be seen"


def more_blocks_text(cause: Doubt | None) -> str:
    """Return the advice for too few blocks: finish the study, or repeat with :data:`ASK_FOR` blocks."""
    if cause is not None and cause.remedy is not None and cause.remedy.kind == "finish the study":
        return REMEDIES["finish the study"]
    return f"repeat with --repeats {ASK_FOR}"


def remedy_text(one: Remedy) -> str:
    """Return the remedy of a doubt, as a clause without a full stop."""
    blocks = "" if one.blocks is None else f": about {one.blocks} in all (--repeats {one.blocks})"
    steps = "" if one.steps is None else f": about {one.steps:,} (steps: {one.steps}; exec: --steps {one.steps})"
    return f"{REMEDIES[one.kind]}{blocks}{steps}"


def _always(text: str) -> Callable[[Doubt], str]:
    return lambda _: text


def _shared(text: str, unknown: str = "an unknown share") -> Callable[[Doubt], str]:
    """Return a formatter of doubts: ``text`` with the share as a percentage for ``{}``, or ``unknown``."""
    return lambda entry: text.format(unknown if entry.share is None else percent(entry.share))


def _located(text: str, unknown: str) -> Callable[[Doubt], str]:
    """Return a formatter of doubts: ``text`` with ``where`` (place, key or fact) for ``{}``, or ``unknown``."""
    return lambda entry: text.format(entry.where or unknown)


DOUBTS: Mapping[DoubtKind, Callable[[Doubt], str]] = {
    "too few blocks": _always(f"an interval needs {MIN_BLOCKS} blocks"),
    "no noise floor": _always("no A/A control shows how much two runs of one arm differ"),
    "no core": _always("its main thread waited for a core for too much of the time"),
    "too noisy": too_noisy_text,
    "blocked": _always("too much of its time was in no timed phase"),
    "device": _always("its device was not recorded"),
    "one stream": _always("its device's work on other streams, or launched within a fetch, was not recorded"),
    "ranks": _always("its ranks wait for one another, so the steps of one rank do not show the gain"),
    "not replayable": lambda entry: GAPS.get(entry.where, entry.where or "its record lacks what a replay needs"),
    "replay off": _shared("the replay reproduces its step time with an error of {}"),
    "no loader": _always("its batches come from a function, not from a DataLoader"),
    "no items": _always("some of its workers made no batches, because its dataset gave them too few items"),
    "unequal": _always("its workers delivered unequal numbers of batches"),
    "row by row": _always("its dataset is read row by row, and workers would have to send as many rows"),
    "slow worker": lambda entry: (
        f"{f'its loader worker {entry.where}' if entry.where else 'one of its workers'} takes "
        + ("far longer for a batch than" if entry.share is None else f"{ratio(entry.share)} as long for a batch as")
        + " the others"
    ),
    "sampler": _always("its sampler takes much of a step in the main thread, which loader workers cannot do"),
    "restarts": _always("its loader restarts in each epoch, which replay does not model"),
    "contradicted": _always("for another value of this setting, the measured speed contradicts replay"),
    "serial": _always("more workers gain nothing if a disk, a network or a lock serves one of them at a time"),
    "too coarse": lambda entry: unseen_text(entry.share),
    "lead": _shared("the measured steps used up prefetched batches or queued work: up to {} faster than later steps"),
    "diverged": _always("its loss is NaN, infinite, or rose far above its start"),
    "other loss": _always("the losses differ by more than the A/A control shows"),
    "repeated data": _shared("up to {} of the training rows are repeats, in one arm only"),
    "a-a apart": _shared("the A/A control, the same program again, differs by {}, as much as the candidate"),
    "long steps": _shared("all time together differs by {} from the median, because of long steps"),
    "explained loss": _always("the losses differ, which different token counts explain"),
    "ceilings apart": _shared("the ideal-data control and the replay differ by {} in the ceiling"),
    "uneven": _always("some blocks wait for data much longer than others, so the mean describes none of them"),
    "step kinds": _shared("steps are of two kinds ({} are slow ones), so the mean describes none of them"),
    "rare long steps": _shared("{} of the steps take over three times as long as the others"),
    "drift": _shared("its speed relative to the baseline changes by {} within runs"),
    "all time apart": _shared("all time together differs by {} from the median over blocks"),
    "used lead": _shared("its measured steps were {} faster than later steps, by work that was prepared before them"),
    "compiled": _shared("step times include compiling (torch.compile) in {} of the runs"),
    "evaluation left out": _shared("evaluations take {} of the time, in steps that no other figure includes"),
    "probe problem": _always("a probe failed"),
    "profiled": _always("a profiler slowed these steps"),
    "mixed data": _located("{} differs between its blocks: the data changed during the study", "data"),
    "mixed code": _located("{} differs between its blocks: the code was edited during the study", "code"),
    "configuration": _located("the setting {} differs, undeclared", "of an arm"),
    "fact": _located("{} differs, a fact of the run that no setting declares", "a property"),
    "environment": _located("{} differs, a part of the environment", "a variable"),
    "useful tokens": _always("a different share of the positions is trained"),
    "other batches": _located("steps have different numbers of {}, although no setting differs", "tokens"),
    "other steps": _always("blocks have different numbers of steps"),
    "host load": _always("other processes used cores during these runs"),
    "sessions": _always("the arms did not run side by side"),
    "unfinished": _located("{} did not finish all blocks", "an arm"),
    "block counts": _always("the arms finished different numbers of blocks"),
    "compared blocks": _always("fewer blocks than planned are compared"),
    "SM clock": _always("the device's SM clock differs"),
    "throttled": _located("the device was throttled by {}", "an unknown cause"),
    "other processes": _always("other processes computed on the device"),
}
REMEDIES: Mapping[RemedyKind, str] = {
    "more blocks": "repeat with more blocks",
    "finish the study": "finish the study with --resume",
    "more steps": "let the program run longer",
    "more steps a block": "repeat with more steps a block",
    "quiet machine": "repeat on a quieter machine",
    "free cores": "repeat when it has a free core (other processes, its own threads and a CPU quota may take it)",
    "a-a control": "add controls: [a-a], or declare noise_floor",
    "more a-a blocks": "let more blocks of the A/A control finish, or declare noise_floor",
    "longer slices": "use longer slices (slice_steps), or --interleave runs and more warmup_steps",
    "more warm-up steps": "use more warmup_steps",
    "more --warmup steps": "use more --warmup steps, and --interleave runs if commands alternate",
    "alike losses": "train both alike until their losses agree: a speed at another loss is no gain",
    "same rows": "let both arms train on the same rows: a speed on repeated ones is no gain",
    "try it": "run it, because it was not measured which of both holds",
    "same shapes": "use more warmup_steps, or batches of one shape",
    "alike arms": "give both arms the same value, or declare the difference",
    "all runs": "let all runs finish",
}


def problem_lines(problems: Iterable[StudyProblem]) -> list[str]:
    """Return a line for each problem of a study, without a full stop."""
    return [_problem(problem) for problem in problems]


def probe_problem_lines(problems: Iterable[ProbeProblem]) -> list[str]:
    """Return a line for each problem of a probe. It names the affected runs, unless all are affected."""
    return [problem.text if problem.everywhere else f"{problem.text} ({_some(problem.runs)})" for problem in problems]


def _some(runs: tuple[str, ...]) -> str:
    """List the first :data:`RUNS_NAMED` runs and count the others: ``a/0, a/1, b/0 and 2 more``."""
    unnamed = len(runs) - RUNS_NAMED
    return listing([*runs[:RUNS_NAMED], *([f"{unnamed} more"] if unnamed > 0 else [])])


def _problem(one: StudyProblem) -> str:
    match one.kind:
        case "nothing finished":
            return "No run has finished yet"
        case "partial":
            return f"Partial study: {one.count} of {count(one.planned, 'run')} finished; missing: {_some(one.names)}"
        case "stray":
            folders = _some(tuple(f"runs/{name}" for name in one.names))
            return f"The runs in {folders} belong to no arm of this study and are not counted"
        case "status":
            return f"The study's status is {one.status}"
        case "no measured step":
            return f"{one.arm}: done, but without a measured step in its tables, {blocks_named(one.blocks)}"
        case "ended":
            assert one.failure is not None
            return f"{one.failure.arm}: {ending_text(one.failure)}, {blocks_named(one.blocks)}"
        case "few steps":
            return (
                f"Too few steps for an interval: {count(one.count, 'block')} of {MIN_BLOCKS}. Let the program run "
                "longer"
            )
        case "few parts":
            return "One training has no interval. harness run repeats an arm, with controls"
        case "diverged":
            return (
                f"{one.arm}: its loss diverged in {count(one.count, 'run')} of {one.planned} (NaN, infinite or far "
                "above its start), so its speed means little"
            )
        case "compiled":
            return (
                f"{one.arm}: step times include compiling (torch.compile) in {count(one.count, 'run')} of "
                f"{one.planned}; use more warmup_steps, or batches of one shape"
            )
        case "lead":
            return _lead_problem(one)
        case "left out":
            return f"{one.arm} was left out: it needs {listing([*one.names])}, missing where the study ran"
        case "few blocks":
            return (
                f"{count(one.count, 'block')} only, and an interval needs {MIN_BLOCKS}: repeat with --repeats {ASK_FOR}"
            )


def _lead_problem(one: StudyProblem) -> str:
    assert one.lead_use is not None
    use = one.lead_use
    kinds: Mapping[LeadRemedy, RemedyKind] = {
        "slices": "longer slices", "runs": "more warm-up steps", "command": "more --warmup steps"
    }  # fmt: skip
    cause = (
        "because the host got further ahead of the device with each step"
        if use.by_host
        else "because they used up prefetched batches, so the wait for data is understated"
    )
    return (
        f"{one.arm}: its measured steps were {percent(use.share)} faster "
        f"({percent_range(use.ci_low, use.ci_high)}) than later steps, {cause}; {REMEDIES[kinds[one.remedy]]}"
    )


def ending_text(failed: RunFailure) -> str:
    """Return how a run ended, with its error or exit code: ``failed (killed by signal 9)``."""
    code = "reason unknown" if failed.exit_code is None else f"exit code {failed.exit_code}"
    return f"{failed.status} ({failed.error or code})"
