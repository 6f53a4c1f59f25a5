"""Find causes of slow steps in the totals of a block: noted waits, counted events, and places that looks found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from harness.attach.agent.events import COMPILED, EXACT, FORCED, HOLDER, HOOKS, LATE
from harness.attach.frames import AttachedProcess
from harness.attach.totals import StepTotals
from harness.explain.causes import CODE, EVALUATION, GC, LOCK, SAMPLED
from trainer.json_types import JsonObject

LEAST_CAUSE_SHARE = 0.002  # share of the measured time below which places are left out
LEAST_FORCED = 0.2  # share of the time in Python code: less is not representative of the rest


def step_causes(process: AttachedProcess, totals: StepTotals) -> tuple[JsonObject, ...]:
    """Return rows on noted waits and copies, compilations, allocator retries, and sampled places of program code."""
    reasons: Counter[tuple[str, str]] = Counter()
    for place, reason, seconds in process.noted("recompiled"):
        reasons[place, reason] += seconds
    place, reason = max(reasons, key=lambda key: reasons[key], default=("", ""))
    named: dict[str, JsonObject] = {COMPILED: {"place": place, "code": reason}}
    counted: list[JsonObject] = [
        {
            **named.get(kind, {}),
            "kind": kind,
            "times": step_count.times,
            "steps": step_count.steps,
            "of": totals.measured,
            "ms": step_count.wall_ns / 1e6,
            "rest_ms": (totals.wall_ns - step_count.wall_ns) / 1e6,
        }
        for kind, step_count in sorted(totals.counted.items())
    ]
    return (*process.noted("cause"), *counted, *own_time(process, totals))


def own_time(process: AttachedProcess, totals: StepTotals) -> Iterator[JsonObject]:
    """Yield rows on sampled time: own code, lock holders, evaluations, collections. Rare places are left out."""
    looks = totals.looks
    if not looks.sampled_ns and not looks.collections and not totals.excluded.place_ns:
        return
    yield {"kind": SAMPLED, "of": totals.measured, "wall_ms": totals.wall_ns / 1e6, "looks": looks.looks}
    names = ("place", "function", "code", "called")
    places = {number: dict(zip(names, fields, strict=True)) for number, *fields in process.noted("place")}
    holders = {number: ns for (phase, number, _), ns in looks.sampled_ns.items() if phase == HOLDER}
    for phase in {phase for phase, _, _ in looks.sampled_ns} - {HOLDER}:
        for number, (ns, late) in spent_at_places(totals, phase).items():
            if number in places and ns >= LEAST_CAUSE_SHARE * totals.wall_ns:
                yield {"kind": CODE, "phase": phase, **places[number], "late": late, "spent_ms": ns / 1e6}
    held = {number: ns * looks.held_shares.get(number, 0.0) for number, ns in looks.others_ns.items()}
    for kind, spent_at in ((LOCK, held), (HOLDER, holders), (EVALUATION, totals.excluded.place_ns)):
        for number, ns in spent_at.items():
            if number in places and ns >= LEAST_CAUSE_SHARE * (totals.wall_ns + totals.excluded.evaluating_ns):
                yield {"kind": kind, **places[number], "spent_ms": ns / 1e6}
    for number, times in looks.collections.items():
        where = {name: places.get(number, {}).get(name, "") for name in ("place", "code")}
        yield {"kind": GC, **where, "times": times, "spent_ms": looks.collecting_ns[number] / 1e6}


def spent_at_places(totals: StepTotals, phase: str) -> dict[int, tuple[float, bool]]:
    """Return, by number of the place, (ns spent there, True if most of it is only the end of longer code).

    LATE looks found the end of Python code: their time goes to FORCED places in proportion, or, if these have less than
    LEAST_FORCED of it, to both.
    """
    spent_by_look: dict[int, Counter[int]] = {EXACT: Counter(), LATE: Counter(), FORCED: Counter()}
    for (sampled_phase, number, waited), ns in totals.looks.sampled_ns.items():
        if sampled_phase == phase:
            spent_by_look[waited][number] += ns
    exact, late, forced = spent_by_look[EXACT], spent_by_look[LATE], spent_by_look[FORCED]
    python_ns = late.total() + forced.total()
    short = forced.total() < LEAST_FORCED * python_ns
    python = Counter({number: ns for number, ns in (forced + late if short else forced).items() if number})
    spread = python_ns / python.total() if python else 1.0
    spent = {number: exact[number] + python[number] * spread for number in exact | python}
    scale = (exact.total() + python_ns) / max(sum(spent.values()), 1) * _ns_of_look(totals, phase)
    return {number: (ns * scale, short and 2 * late[number] * spread > ns) for number, ns in spent.items()}


def _ns_of_look(totals: StepTotals, phase: str) -> float:
    """Return real ns per sampled ns of ``phase``. "": outside all phases, minus all garbage collections."""
    alike = ("backward", HOOKS) if phase in ("backward", HOOKS) else (phase,)
    sampled_ns = sum(ns for (sampled_phase, _, _), ns in totals.looks.sampled_ns.items() if sampled_phase in alike)
    parts = {name: sum(ms) * 1e6 for name, ms in totals.lengths.parts.items()}
    outside_ns = totals.wall_ns - sum(parts.values()) - totals.looks.collecting_ns.total()
    return max(parts.get(alike[0], 0.0) if phase else outside_ns, 0.0) / max(sampled_ns, 1)
