"""Makes a sentence of each difference between two arms that neither declared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from harness.judge.confounds import Confound, ConfoundKind
from harness.show.words import blocks_named, count, percent, ratio

SAME_LOAD = 0.1  # cores: less is no difference


def confound_lines(found: Iterable[Confound]) -> list[str]:
    """One line for each."""
    return [_TEXTS[one.kind](one) for one in found]


def _useful(one: Confound) -> str:
    ours, theirs = one.values
    base, other = one.names
    return f"useful tokens: {percent(ours)} of the positions of {base} are trained, {percent(theirs)} of {other}'s"


def _other_batches(one: Confound) -> str:
    ours, theirs = one.values
    base, other = one.names
    what = "trained tokens" if one.key == "trained_tokens" else "positions"
    return (
        f"other batches: {ours:,.0f} {what} a step of {base}, {theirs:,.0f} of {other}, though no setting differs: "
        "part of the difference may be due to the batches"
    )


def _other_steps(one: Confound) -> str:
    ours, theirs = one.values
    base, other = one.names
    return (
        f"other steps: {ours:,} in a run of {base}, {theirs:,} of {other}; by the first {min(ours, theirs):,} of both, "
        f"steps of {other} are {ratio(one.ratio)} as fast"
    )


def _load(one: Confound) -> str:
    ours, theirs = one.values
    base, other = one.names
    if abs(ours - theirs) < SAME_LOAD:
        return f"host load by other processes: {max(ours, theirs):.2f} cores during both {base} and {other}"
    return f"host load by other processes: {ours:.2f} cores during {base}, {theirs:.2f} during {other}"


def _clock(one: Confound) -> str:
    ours, theirs = one.values
    return f"device {one.device}: SM clock {ours:,.0f} MHz during {one.names[0]}, {theirs:,.0f} during {one.names[1]}"


def _throttled(one: Confound) -> str:
    ours, theirs = one.values
    return (
        f"device {one.device}: slowed down by {one.key} in {percent(ours)} of the samples during {one.names[0]}, "
        f"{percent(theirs)} during {one.names[1]}"
    )


def _against(one: Confound) -> str:
    return f"{one.key} is {one.values[0]!r} against {one.values[1]!r}"


def _losses(one: Confound) -> str:
    ours, theirs = one.values
    text = f"losses differ: {ours:.3f} of {one.names[0]} against {theirs:.3f} of {one.names[1]} at the same steps"
    if one.explained:
        return f"{text}, as {one.names[1]} trains on another number of tokens"
    return f"{text}: the arms do not train the same"


def _lead(one: Confound) -> str:
    parts = [
        f"the steps of {name} were up to {percent(share)} faster than later steps"
        for name, share in zip(one.names, one.values, strict=True)
        if share
    ]
    return f"work prepared before the measured steps (prefetched batches or queued work): {' and '.join(parts)}"


_TEXTS: Mapping[ConfoundKind, Callable[[Confound], str]] = {
    "diverged": lambda one: f"loss of {one.key} diverged: NaN, infinite or far above its start in measured steps",
    "losses": _losses,
    "lead": _lead,
    "mixed data": lambda one: f"{one.key} differs between blocks of {one.names[0]}: its data changed during the study",
    "mixed code": lambda one: (
        f"the code of the {one.key.removesuffix('_fingerprint')} differs between blocks of {one.names[0]}: it was "
        "edited during the study"
    ),
    "configuration": lambda one: f"configuration: {_against(one)}",
    "fact": _against,
    "environment": lambda one: f"environment: {_against(one)}",
    "useful tokens": _useful,
    "other batches": _other_batches,
    "other steps": _other_steps,
    "host load": _load,
    "sessions": lambda one: f"not run side by side: different sessions in {blocks_named(one.blocks)}",
    "unfinished": lambda one: f"{one.key} did not finish {blocks_named(one.blocks)}",
    "block counts": lambda one: (
        f"{one.names[0]} has {count(one.values[0], 'finished block')}, {one.names[1]} has {one.values[1]}"
    ),
    "compared blocks": lambda one: f"compared over {one.values[0]} of {count(one.values[1], 'planned block')}",
    "SM clock": _clock,
    "throttled": _throttled,
    "other processes": lambda one: f"device {one.device}: other processes computed on it",
}
