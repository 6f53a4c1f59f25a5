"""Words for diagnoses of attached programs, and for how far to trust them."""

from __future__ import annotations

from harness.explain.policy import MIN_BLOCKS
from harness.explain.statistics import Estimate
from harness.explain.wall import RESTART, StepPart
from harness.judge.policy import CORE_WAIT_SHARE_MAX
from harness.judge.report_types import ArmReport, Diagnosis, DiagnosisKind, DiagnosisRemedy
from harness.show.words import amount, count, interval, part_of, percent, ratio

TITLES: dict[DiagnosisKind, str] = {
    "input-bound": "INPUT-BOUND",
    "checkpoint-bound": "CHECKPOINT-BOUND",
    "own code": "OWN CODE",
    "garbage collection": "GARBAGE COLLECTION",
    "evaluation-bound": "EVALUATION-BOUND",
    "recompiling": "RECOMPILING",
    "cores too few": "CORES TOO FEW",
    "growing": "STEPS GET LONGER",
    "padding": "PADDING",
    "compute-bound": "COMPUTE-BOUND",
    "unknown": "UNKNOWN",
}
REMEDIES: dict[DiagnosisRemedy, str] = {
    "advice": "What to try is below.",
    "persistent workers": "Keep the loader workers alive: persistent_workers=True.",
    "fewer restarts": "Make epochs longer: each begins with an empty queue.",
    "faster sampler": "Draw fewer items, or draw them faster: loader workers cannot take the sampler over.",
    "tokenize before": "Tokenize once, before the training.",
    "faster loading": "Make batches with less work, or read from faster storage.",
    "save less often": "Save less often, or in another thread or process.",
    "less often": "Do it less often, in another thread or process, or with less data.",
    "other thread": "It waits there for another thread or process: for batches, if that one makes them.",
    "freeze": "Call gc.freeze() once the data is loaded, and collect every few hundred steps at most.",
    "evaluate less often": "Evaluate less often, or on fewer batches.",
    "fewer shapes": "Pad to one length or to a few, or compile with dynamic=True. TORCH_LOGS=recompiles has reasons.",
    "free cores": "Use fewer threads and workers, more cores, or a machine that nothing else uses.",
    "find the growth": "Something is added in each step, such as a hook, a graph that is kept, or a list.",
    "pad less": "Pad each batch to its longest row only, batch rows of like length, or pack them.",
    "model": "Nothing on the input side would help: make the model, its kernels or its precision faster.",
    "profile": "Find the place: harness exec --profile py-spy.",
}


def part_label(part: StepPart) -> str:
    """The name of a part in a table or a bar: ``data: tokenize``, ``own code: train.py:88``."""
    if part.kind == "data":
        return f"data: {part.name}"
    if part.kind == "code":
        return f"own code: {part.name}"
    return f"long steps: {part.name}" if part.kind == "long" else part.name


def diagnosis_text(one: Diagnosis, step_ms: float) -> str:
    """Return cost, place and saving of a diagnosis, without its title and its remedy."""
    part = part_of(step_ms)
    text = f"{part(one.ms.median)}{_between(one.ms, step_ms)} of a step ({percent(one.share)}){_where(one, step_ms)}."
    if one.kind == "compute-bound":
        most = None if one.saving is None else one.saving.ci_high or one.saving.median
        return text if most is None else f"{text} Without any data work a step would be {ratio(most)} as fast at most."
    return text + _saving(one)


def finding_text(one: Diagnosis, step_ms: float) -> str:
    """Return a diagnosis as a finding below another one: without intervals."""
    cost = f"{part_of(step_ms)(one.ms.median)} of a step ({percent(one.share)}){_where(one, step_ms)}"
    saving = "" if one.saving is None else f" ({'at most ' if one.at_most else ''}{ratio(one.saving.median)} as fast)"
    return f"{TITLES[one.kind].capitalize()}: {cost}{saving}. {REMEDIES[one.remedy]}"


def _where(one: Diagnosis, step_ms: float) -> str:
    part = one.part
    mostly = "" if one.share_of_part > ALL_OF_IT else f", {part_of(step_ms)(part.ms.median)} of it"
    match part.kind:
        case "code":
            called = f", in {part.called}" if part.called else ""
            code = f" (`{shortened(part.code)}`)" if part.code else ""
            return f"{mostly} {'just before' if part.late else 'at'} {part.name}{code}{called}"
        case "data":
            return f"{mostly} in {'restarts of the loader' if part.name == RESTART else part.name}"
        case "long":
            return f"{mostly} in a few long steps, in {part.name}: the record does not tell why"
        case "phase":
            outside = "outside of all phases: no line takes much of it"
            return f"{mostly} {outside if part.name == 'other' else f'in {part.name}'}"
        case _:
            return ""


CODE_LONGEST = 44  # characters of a line of code
WIDE_TIMES = 4  # upper / lower end of an interval: a wider one has no upper end worth a figure
ALL_OF_IT = 0.99  # share of the cost: a place with more of it has all of it


def shortened(code: str) -> str:
    """Return a line of code without its end, if it is long."""
    return code if len(code) <= CODE_LONGEST else f"{code[: CODE_LONGEST - 3]}..."


def _between(ms: Estimate, step_ms: float) -> str:
    if ms.ci_low is None or ms.ci_high is None:
        return ""
    return f" ({amount(ms.ci_low, step_ms)} to {part_of(step_ms)(ms.ci_high)})"


def _saving(one: Diagnosis) -> str:
    if one.saving is None:
        return ""
    faster, low, high = f"{ratio(one.saving.median)} as fast", one.saving.ci_low, one.saving.ci_high
    known = "" if low is None or high is None else f" ({interval(one.saving)})"
    if low is not None and high is not None and high > WIDE_TIMES * low:
        known = f" (at least {ratio(low)})"
    return f" Without it a step would be {'at most ' if one.at_most else ''}{faster}{known}."


def trust_text(arm: ArmReport) -> str:
    """Return one sentence on how far to trust the card of ``arm``."""
    hidden = arm.unseen
    if hidden is not None and hidden.waiting > CORE_WAIT_SHARE_MAX:
        return (
            f"Trust: the machine was busy. The main thread had no core for {percent(hidden.waiting)} of the time: that "
            "is a part of its own, and small parts may be off. Repeat on a free machine to predict savings."
        )
    if hidden is not None and hidden.ranks > 1:
        return "Trust: ranks wait for one another, so a saving of one rank is not a saving of all."
    if hidden is not None and hidden.device:
        return "Trust: times are the host's. Forward and backward are launched there, and the device may work later."
    if arm.blocks < MIN_BLOCKS:
        return f"Trust: no intervals, as {count(arm.totals.steps, 'step')} are too few. Measure more steps."
    return f"Trust: {count(arm.totals.steps, 'step')} of one run, so intervals leave out what differs from run to run."
