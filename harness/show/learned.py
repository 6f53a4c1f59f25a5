"""The table of what each arm learned and how soon, for scenarios that give a ``target_loss``."""

from __future__ import annotations

from collections.abc import Sequence

from harness.explain.step_losses import LAST_STEPS
from harness.judge.target_loss import Learned
from harness.show.names import ArmNames
from harness.show.tables import NOT_MEASURED, Markdown, estimate_cell, number_cell, table
from harness.show.words import number


def section(found: Sequence[Learned], names: ArmNames) -> str:
    """The table and its note; empty where the scenario has no target."""
    if not found:
        return ""
    target = f"{found[0].target:g}"
    header = [
        "arm",
        "loss at the end",
        f"steps to {target}",
        "tokens to it",
        "seconds to it",
        "reached by",
        "memory MiB",
    ]
    on_device = any(one.peak_device_bytes is not None for one in found)
    rows = [
        [
            names.short(one.arm),
            _loss_cell(one),
            estimate_cell(one.steps),
            number_cell(one.tokens),
            number_cell(one.seconds),
            _reached_cell(one),
            _mib(one.peak_memory_bytes),
            *([_mib(one.peak_device_bytes)] if on_device else []),
        ]
        for one in found
    ]
    trained = [one.trained_steps for one in found if one.trained_steps is not None]
    after = f" The runs end after {_range(trained)} steps." if trained else ""
    note = (
        f"Medians over the runs [95 % interval]. A loss is the mean over {LAST_STEPS} training steps, warm-up steps "
        "among them, as they train too; it is that of the batches it trains on, not of a held-out set."
        f"{after} *Steps* (at least {LAST_STEPS}), *tokens* and *seconds* are medians over all runs: one that did not "
        "come there counts as later than any other, and then there is no interval. Seconds are those of steps alone, "
        f"at the arm's typical one. Memory is the most that a run's processes had resident"
        f"{', and torch on the device' if on_device else ''}."
    )
    return f"{table([*header, *['device MiB'] * on_device], rows)}\n\n{note}"


def _reached_cell(one: Learned) -> str:
    """``5 of 5``, with what takes from it: a loss that falls below the target by chance, or in runs that survived."""
    text = f"{one.reached} of {one.runs}"
    text += f"; {one.left} ended above it again" if one.left else ""
    return text + (f"; {one.failed} more failed" if one.failed else "")


def _loss_cell(one: Learned) -> str:
    if one.diverged:
        return Markdown(f"**diverged** in {one.diverged} of {one.runs}")
    loss = one.loss
    if loss is None:
        return NOT_MEASURED
    if loss.ci_low is None or loss.ci_high is None:
        return f"{loss.median:.3f} [no interval]"
    return f"{loss.median:.3f} [{loss.ci_low:.3f}–{loss.ci_high:.3f}]"


def _mib(value: float | None) -> str:
    return NOT_MEASURED if value is None else number(value / 2**20)


def _range(values: Sequence[int]) -> str:
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"
