"""Makes the sentences on missing figures, missing comparisons and failures of a study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.explain.statistics import MIN_BLOCKS
from harness.judge.comparisons import Absent, Figure, Measured, Missing
from harness.judge.doubts import Doubt
from harness.judge.problems import ProbeProblem, RunFailure, StudyProblem
from harness.judge.report_types import NoMfu
from harness.judge.verdicts import ENOUGH_BLOCKS
from harness.show.words import blocks_named, count, listing, percent, percent_range, ratio

ASK_FOR = ENOUGH_BLOCKS  # blocks to ask for where there are too few
_NAMED_RUNS = 3  # of those that had a problem with a probe


# By what a run's record lacks for a replay.
GAPS: Mapping[str, str] = {
    "no run": "no run of this arm has finished",
    "no tables": "no finished run with tables to replay",
    "ranks": "its ranks wait for one another, which a replay of one of them does not know",
    "no times": "its steps have no times to replay",
    "no measured step": "it has no measured step to replay",
    "damaged spans": "a span ends before it starts, so its spans table is damaged",
    "no fetch": "its spans have no fetch to replay",
    "too far ahead": "too many batches would be in flight (workers x prefetch)",
    "no shared block": "no block in which both the run and the data-only run finished",
}


def refusal_text(why: Doubt) -> str:
    """Why an arm cannot be replayed."""
    match why.kind:
        case "no core":
            return "its main thread had no core for too much of the time"
        case "blocked":
            return "too much of its time was not seen"
        case "device":
            return "what its device did was not recorded"
        case "one stream":
            return "its device's work on other streams, or launched within a fetch, was not recorded"
        case "ranks":
            return "its ranks wait for one another, so its own steps do not tell what one of them would gain"
        case "not replayable":
            return GAPS.get(why.where, why.where)
        case kind:
            return kind


def reason(absent: Absent) -> str:
    """One line without a full stop."""
    match absent.kind:
        case "no data-only control":
            return f"no finished data-only control of {' or '.join(absent.arms)}"
        case "data-only controls apart":
            return "the data-only controls share no finished block"
        case "no ideal-data control":
            return f"no finished ideal-data control of {absent.arms[0]}"
        case "ideal-data of another length":
            times = ratio(absent.positions)
            return (
                f"the ideal-data control of {absent.arms[0]} computes {times} as many positions a step, "
                "so it does not show what data work costs"
            )
        case "no finite ceiling":
            return "the steps only wait for data, or their waits were not measured"
        case "ranks":
            return "its ranks wait for one another for an unknown reason"
        case "no a-a control":
            return "no finished a-a control"
        case "too few a-a blocks":
            return f"the a-a control needs {MIN_BLOCKS} blocks and has {absent.blocks}"
        case "too noisy":
            return f"the ideal-data control of {absent.arms[0]} was too noisy to see even a 2x change"
        case "no tables":
            return "no tables to replay"
        case "more than the data path differs":
            return f"the arms differ in {absent.detail}, which changes more than the data path"
        case "replay refused":
            return GAPS.get(absent.detail, absent.detail)


def absent_text(measured: Measured, figure: Figure) -> str:
    """Why ``figure`` is missing."""
    found = measured.absent.get(figure)
    return "not measured" if found is None else reason(found)


def missing_text(missing: Missing) -> str:
    """Why nothing of a comparison was measured."""
    match missing.kind:
        case "no finished run":
            text = f"no finished run of {' and of '.join(missing.arms)}"
        case "no shared block":
            text = "no block in which both finished"
        case "no throughput":
            text = "no throughput in the tables"
        case "nothing trained":
            text = f"{' and '.join(missing.arms)} trained on no token, as no position has a label"
    return text + "".join(f"; {failed.arm}: {_ending(failed)}" for failed in missing.failures)


def mfu_reason(none: NoMfu | None) -> str | None:
    """Why a share of a peak (MFU) is not given; None where it is."""
    if none is None:
        return None
    match none.kind:
        case "no run":
            return "no finished run"
        case "no compute":
            return "this control computes nothing"
        case "no flops":
            return "the FLOPs per token are unknown, or no model is computed"
        case "no profile":
            return none.detail or f"no device profile for {none.device or 'an unnamed device'}"


def problem_lines(problems: Iterable[StudyProblem]) -> list[str]:
    """What is missing from a study, a line each."""
    return [_problem(one) for one in problems]


def probe_problem_lines(problems: Iterable[ProbeProblem]) -> list[str]:
    """What the probes could not do, a line each, with the runs that reported it where not all did."""
    return [one.text if one.everywhere else f"{one.text} ({_some(one.runs)})" for one in problems]


def _some(runs: tuple[str, ...]) -> str:
    """``a/0, a/1, b/0 and 2 more``"""
    more = len(runs) - _NAMED_RUNS
    return listing([*runs[:_NAMED_RUNS], *([f"{more} more"] if more > 0 else [])])


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
            return f"{one.failure.arm}: {_ending(one.failure)}, {blocks_named(one.blocks)}"
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
            return _lead(one)
        case "left out":
            return f"{one.arm} was left out: it needs {listing([*one.names])}, not installed where the study ran"
        case "few blocks":
            return (
                f"{count(one.count, 'block')} only, and an interval needs {MIN_BLOCKS}: repeat with --repeats {ASK_FOR}"
            )


def _lead(one: StudyProblem) -> str:
    assert one.lead_use is not None
    use = one.lead_use
    remedy = {
        "slices": "use longer slices (slice_steps), or --interleave runs and more warmup_steps",
        "runs": "use more warmup_steps",
        "command": "use more --warmup steps, and --interleave runs if commands take turns",
    }[one.remedy]
    why = (
        "as the host got further ahead of the device with each step"
        if use.by_host
        else "as they used up prefetched batches, so the wait for data is understated"
    )
    return (
        f"{one.arm}: its measured steps were {percent(use.share)} faster "
        f"({percent_range(use.ci_low, use.ci_high)}) than later steps, {why}; {remedy}"
    )


def _ending(failed: RunFailure) -> str:
    """``failed (killed by signal 9)``: how a run ended."""
    code = "reason unknown" if failed.exit_code is None else f"exit code {failed.exit_code}"
    return f"{failed.status} ({failed.error or code})"
