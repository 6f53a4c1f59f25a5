"""harness profile: profiles a few steps of a running training."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from harness.attach.agent.events import MOST_PROFILE_STEPS
from harness.commands.arguments import add_program
from harness.commands.output import say
from trainer.errors import InputError

TORCH, PY_SPY, BOTH = "torch", "py-spy", "both"
STEPS, SECONDS, LIMIT_S = 3, 5.0, 300.0
MOST_SECONDS = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_program(parser)
    parser.add_argument("--kind", choices=(TORCH, PY_SPY, BOTH), default=TORCH, help="profiler (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help="for torch (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help="for py-spy (default: %(default)g)")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, metavar="S", help="seconds to wait for its steps (default: %(default)g)"
    )


def profile(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Profile some steps of a program under ``harness exec`` while it runs, and name the files. Returns 0, or 1."""
    if not 1 <= arguments.steps <= MOST_PROFILE_STEPS:
        raise InputError(f"profile: --steps {arguments.steps}: 1 to {MOST_PROFILE_STEPS}")
    if not 0 < arguments.seconds <= MOST_SECONDS:
        raise InputError(f"profile: --seconds {arguments.seconds:g}: over 0, up to {MOST_SECONDS:g}")
    if not arguments.limit > 0:
        raise InputError(f"profile: --limit {arguments.limit:g}: over 0 (seconds)")
    from harness.attach.live import find_program, recorded_programs
    from harness.attach.on_demand import NotProfiled, alone, process_of, profile_stacks, profile_torch

    program = find_program(arguments.target, recorded_programs())
    pid = process_of(program, arguments.target)
    folder = program.raw.parent / "profiles" / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{pid}"
    try:
        with alone(program, pid):
            if arguments.kind in (TORCH, BOTH):
                trace, steps, cut = profile_torch(program, pid, arguments.steps, folder, arguments.limit)
                say(f"torch.profiler, {steps} steps of process {pid}: {trace}")
                if cut:
                    say("the trace was cut at its largest size: profile fewer steps (--steps)")
                for line in _operators(trace, steps):
                    say(line)
            if arguments.kind in (PY_SPY, BOTH):
                stacks, sampled_s = profile_stacks(program, pid, arguments.seconds, folder, arguments.limit)
                say(f"py-spy, {sampled_s:.1f} s of process {pid}: {stacks}")
    except NotProfiled as error:
        say(f"not profiled: {error}")
        return 1
    say("open it in Perfetto: https://ui.perfetto.dev (it stays on this machine)")
    return 0


def _operators(trace: Path, steps: int) -> list[str]:
    from harness.explain.probes.torch_profile import profiled_operators
    from harness.show.profile import operator_lines
    from harness.study.traces.kineto import read_profile

    return operator_lines(profiled_operators([read_profile(trace, 0)], 0), steps)
