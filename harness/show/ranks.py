"""Reports which rank of an arm the others wait for, and which part of its work they wait for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from harness.explain.ranks import RanksReport, Unknown
from harness.judge.controls import Scaling
from harness.judge.report_types import ArmReport, Comparison
from harness.show.lone_arms import Headline
from harness.show.names import ArmNames
from harness.show.policy import RANK_KEYS_NAMED, STRAGGLER_SHARE_MIN, WAITED_SHARE_MAX
from harness.show.tables import column_table
from harness.show.words import count, interval, listing, ms, number, part_of, percent, ratio

UNKNOWN: Mapping[Unknown, str] = {
    "device": "because a device computes asynchronously",
    "micro-batches": "because each micro-batch of a step begins with its own wait (fsdp)",
    "not recorded": "because its exchanges were not recorded",
    "": "because nothing was measured",
}
NOTE = (
    "A rank waits for the others from when its own work before the exchange is done (ddp: its last gradients are "
    "ready; fsdp: its first forward pass begins, which gathers the weights) until the last rank has come so far. "
    "{clock} tokens/s: those that the rank computed itself."
)
ONE_CLOCK = "All ranks are on one machine, whose clock (CLOCK_MONOTONIC) they share."
CLOCKS = "Ranks of one machine share its clock (CLOCK_MONOTONIC)."


def rank_lines(arms: Iterable[ArmReport], names: ArmNames) -> Iterator[Headline]:
    """Yield a line per arm with several ranks: which rank the others wait for, and how long each waits."""
    for arm in arms:
        if arm.ranks is not None and arm.control is None:
            subject = f"{names.short(arm.name)}, {count(len(arm.ranks.ranks), 'rank')} ({arm.ranks.parallel})"
            yield Headline(subject, _finding(arm.ranks), _support(arm.ranks))


def scaling_lines(comparisons: Iterable[Comparison], names: ArmNames) -> Iterator[Headline]:
    """Yield a line for each comparison of arms with different numbers of ranks: the speedup and the efficiency."""
    for comparison in comparisons:
        if (scaling := comparison.scaling) is None:
            continue
        first, second = names.short(scaling.baseline), names.short(scaling.candidate)
        bounds = f" ({interval(scaling.speedup)})" if scaling.speedup.ci_low is not None else ""
        text = f"{ratio(scaling.speedup.median)} the tokens/s{bounds} with {count(scaling.ranks[1], 'rank')} for "
        text += f"{scaling.ranks[0]}, efficiency {percent(scaling.efficiency)}"
        if (open_to := scaling.efficiency_range) is not None:
            text += f" ({percent(open_to[0])} to {percent(open_to[1])})"
        support = _scaled_by(scaling, first)
        if scaling.losses is not None:
            first_loss, loss = scaling.losses
            support.append(f"Training loss after the same tokens: {loss:.3f}, of {first} {first_loss:.3f}.")
        if scaling.seconds is not None and scaling.target is not None:
            first_s, seconds = map(number, scaling.seconds)
            support.append(f"Loss {scaling.target:.3f} after {seconds} s of steps, of {first} after {first_s} s.")
        yield Headline(f"Scaling of {second} ({_kind(scaling)})", text, " ".join(support))


def _kind(found: Scaling) -> str:
    if found.weak is not None:
        return "weak: the global batch grows" if found.weak else "strong: the same global batch"
    if found.per_step is None:
        return "of unknown batch sizes"
    batch = ratio(found.per_step[1] / found.per_step[0])
    return f"neither weak nor strong: {batch} the global batch with {ratio(found.ranks[1] / found.ranks[0])} the ranks"


def _scaled_by(found: Scaling, first: str) -> list[str]:
    """Return sentences on what weakens the efficiency against the arm ``first``: other differences, shared cores."""
    lines = []
    exceeds = (open_to := found.efficiency_range) is not None and open_to[0] > 1
    if found.differs:
        remainder = ["others"] if len(found.differs) > RANK_KEYS_NAMED else []
        keys = listing([*found.differs[:RANK_KEYS_NAMED], *remainder])
        addition = ", which is more than the ranks can give" if exceeds else ""
        lines.append(f"The arms differ in {keys} as well: this is not the efficiency of the ranks alone{addition}.")
    elif exceeds:
        lines.append("That is more than the ranks can give: the arms differ in something else.")
    if found.threads is not None:
        base_threads, threads = found.threads
        if threads * found.ranks[0] != base_threads * found.ranks[1]:
            lines.append(
                f"The efficiency counts ranks: they compute in {count(threads, 'thread')}, {first} in {base_threads}."
            )
        elif found.cores and threads > found.cores:
            lines.append(f"The ranks compute in {count(threads, 'thread')} on {count(found.cores, 'core')}.")
    return lines


def _finding(found: RanksReport) -> str:
    if all(rank.wait_ms is None for rank in found.ranks):
        return f"waits between ranks are unknown, {UNKNOWN[found.unknown]}"
    late, part = found.straggler, part_of(found.step_ms)
    if late is None or late.saved_ms < STRAGGLER_SHARE_MIN * found.step_ms:
        longest = max(found.ranks, key=lambda rank: rank.wait_ms or 0.0)
        waits = f"{part(longest.wait_ms or 0.0)} of {part(found.step_ms)} a step"
        phase = " before their first forward pass" if found.parallel == "fsdp" else ""
        certainty = "surely " if (longest.wait_ms or 0.0) >= WAITED_SHARE_MAX * found.step_ms else ""
        return (
            f"no rank is {certainty}the one that the others wait for{phase} (rank {longest.number} waits most, {waits})"
        )
    waits = f"{part(late.saved_ms)} of {part(found.step_ms)} a step"
    part_name = "work outside of all phases (other)" if late.part == "other" else late.part
    return f"rank {late.number} makes the others wait, {waits} for {part_name}"


def _support(found: RanksReport) -> str:
    late, part = found.straggler, part_of(found.step_ms)
    parts = []
    if late is not None and late.saved_ms >= STRAGGLER_SHARE_MIN * found.step_ms:
        parts.append(
            f"It takes {part(late.excess_ms)} longer for it than the next; without that a step would take "
            f"{part(found.without_straggler_ms)}, {ratio(found.step_ms / found.without_straggler_ms)} as fast, if no "
            "rank then lacks a core that is free while it waits."
        )
    waits = [f"rank {rank.number} {part(rank.wait_ms)}" for rank in found.ranks if rank.wait_ms is not None]
    if waits:
        exchange = "" if found.exchange_ms is None else f"; the exchange itself takes {part(found.exchange_ms)}"
        scope = ""
        if found.parallel == "fsdp":
            scope = " before the first forward pass; within the passes waits cannot be separated from computing"
        parts.append(f"Waits for the others: {listing(waits)} a step{scope}{exchange}.")
    if found.clock_error_ms is not None:
        parts.append(
            f"The clocks of {found.nodes} machines were compared: a wait may be wrong by {part(found.clock_error_ms)}."
        )
    return " ".join(parts)


def section(arms: Sequence[ArmReport], names: ArmNames) -> str:
    """Return a table with a row per rank of all arms that have several ranks, and a note; "" without such an arm."""
    several = [(arm, arm.ranks) for arm in arms if arm.ranks is not None]
    rows = [(arm.name, rank) for arm, report in several for rank in report.ranks]
    if not rows:
        return ""
    shown = column_table(rows, {
        "arm": lambda row: names.short(row[0]),
        "rank": lambda row: str(row[1].number),
        "step": lambda row: ms(row[1].step_ms),
        "waits for data": lambda row: ms(row[1].fetch_ms),
        "waits for other ranks": lambda row: "not known" if row[1].wait_ms is None else ms(row[1].wait_ms),
        "tokens/s": lambda row: "not known" if row[1].tokens_per_s is None else number(row[1].tokens_per_s),
    })  # fmt: skip
    note = NOTE.format(clock=CLOCKS if any(report.nodes > 1 for _, report in several) else ONE_CLOCK)
    return f"{shown}\n\n{note}"
