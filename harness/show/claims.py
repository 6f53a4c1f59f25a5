"""The table of where step and cores go, and a sentence on each claim that the scenario asks about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.explain.statistics import Estimate
from harness.judge.claims import PARTS, ArmUse, JudgedClaim
from harness.scenario.claims import SHARES, ClaimKind
from harness.show.names import ArmNames
from harness.show.policy import CLAIM_KEYS_NAMED
from harness.show.tables import NOT_MEASURED, estimate_cell, number_cell, safe, table
from harness.show.words import capitalised, count, listing, number, percent, ratio


def claim_text(one: JudgedClaim) -> str:
    """The claim as it is commonly made, or by its figure and bounds."""
    kind = one.kind
    if kind.text:
        return kind.text
    text = f"{kind.of} of {one.arm} is {kind.low:g} to {kind.high:g}"
    return text if one.baseline is None else f"{text} times that of {one.baseline}"


def section(uses: Sequence[ArmUse], judged: Sequence[JudgedClaim], names: ArmNames) -> str:
    """Empty where the scenario names no claim."""
    if not judged:
        return ""
    sentences = "\n".join(f"- {safe(sentence(one, names))}" for one in judged)
    header = [
        "arm",
        "step ms (median of runs)",
        "tokenizing ms per 1000 tokens",
        f"{' / '.join(PARTS)}: % of the step",
        f"{' / '.join(PARTS)}: CPU cores",
        "all processes: cores",
        "device idle",
    ]
    rows = [
        [
            names.short(one.arm),
            estimate_cell(one.step_ms),
            estimate_cell(one.tokenizing_ms),
            _parts({part: f"{100 * share.median:.0f}" for part, share in one.shares.items()}),
            _parts({part: f"{cores:.2f}" for part, cores in one.cores.items()}),
            number_cell(one.all_cores),
            NOT_MEASURED if one.idle_share is None else percent(one.idle_share),
        ]
        for one in uses
    ]
    note = (
        "Medians over the runs [95 % interval]. The step's shares are of its time on the main thread (a checkpoint's "
        "is in none of them); on an "
        "asynchronous device compute is launching, and sync with compute.sync late waits for the step before while the "
        "device works; the last column is the time that it had no work. Cores are CPU time per second of the measured "
        "steps by the same parts; processes that tokenize for the main thread count as tokenization, but for those "
        "that are started for each batch, which live too short to be sampled."
    )
    if any(one.ranks > 1 for one in uses):
        note += (
            " Of several ranks the shares and the cores by part are those of rank 0, and *all processes* are those of "
            "every rank."
        )
    return f"{sentences}\n\n{table(header, rows)}\n\n{note}"


def _parts(known: Mapping[str, str]) -> str:
    return " / ".join(known.get(part, NOT_MEASURED) for part in PARTS)


def sentence(one: JudgedClaim, names: ArmNames) -> str:
    """``"Batching makes tokenization 20 to 30 % faster": does not hold here: 1.03x [1.01x to 1.05x] (a against b).``"""
    kind = one.kind
    against = "" if one.baseline is None else f" against {names.short(one.baseline)}"
    found, what = "nothing was measured", ""
    if one.figure is not None:
        found = _figure(one.figure, kind)
        what = {"tokenizing speed": " as fast", "training speed": " the trained tokens per second"}.get(kind.of, "")
    elif one.without:
        found = f"no finished run of {listing([names.short(arm) for arm in one.without])} has that figure"
    cpu = "" if one.values is None else f" of the cores ({number(one.values[0])} to {number(one.values[1])})"
    text = capitalised(claim_text(one))
    limits = f"{_most(one)}{_limits(one)}{_why_open(one)}"
    measured = f"{found}{what if kind.ratio else ''}{cpu}"
    return f"“{text}”: {_verdict(one)}: {measured} ({names.short(one.arm)}{against}){limits}."


def _verdict(one: JudgedClaim) -> str:
    if one.claim is None:
        open_text = "not measured" if one.figure is None else "undecided"
        return {"holds": "held", "does not hold": "not held", "not measurable": open_text}[one.outcome]
    return "not measurable here" if one.outcome == "not measurable" else f"{one.outcome} here"


def _why_open(one: JudgedClaim) -> str:
    """Return why a measured figure neither confirms nor refutes the claim."""
    if one.outcome != "not measurable" or one.figure is None:
        return ""
    if one.figure.ci_low is None:
        return "; too few blocks for an interval"
    if one.untested is not None:
        return ""
    wider = "" if one.noise_floor is None else f", with the noise floor of {percent(one.noise_floor)},"
    return f"; the interval{wider} reaches across the claim's bounds"


def _most(one: JudgedClaim) -> str:
    """What sharing the work can give by itself, where that is less than is claimed, or than was measured."""
    if one.processes is None or one.cores is None or one.figure is None:
        return ""
    most = min(one.processes, one.cores)
    shared = f"{_processes(one.processes)} on {count(one.cores, 'core')}"
    low = one.figure.median if one.figure.ci_low is None else one.figure.ci_low
    if low > most:
        return f"; more than {shared} can give by sharing the work, so something else is faster as well"
    return f"; {shared} can be no more than {most}x by sharing the work" if most < one.kind.low else ""


def _processes(number: int) -> str:
    return f"{number} process{'' if number == 1 else 'es'}"


def _limits(one: JudgedClaim) -> str:
    """What takes from the verdict: another difference of the arms, no difference of strategy, no A/A control."""
    text = f"; both have data.tokenize {one.untested}, so nothing of the claim was tried" if one.untested else ""
    if one.differs:
        others = listing(
            [*one.differs[:CLAIM_KEYS_NAMED], *(["others"] if len(one.differs) > CLAIM_KEYS_NAMED else [])]
        )
        text += f"; the arms differ in {others} as well"
    if one.kind.ratio and one.figure is not None and one.noise_floor is None:
        text += "; no A/A control says how far two runs of one arm lie apart"
    return text


def _figure(figure: Estimate, kind: ClaimKind) -> str:
    show = ratio if kind.ratio else percent if kind.of in SHARES else number
    if figure.ci_low is None or figure.ci_high is None:
        return f"{show(figure.median)} [no interval]"
    return f"{show(figure.median)} [{show(figure.ci_low)} to {show(figure.ci_high)}]"
