"""``python -m tests.campaigns cases --out DIR [--shared DIR] [--remedies] [--page] [NAME ...]``: is the cause named?

Each case is a training that is slow for one reason, and the same without it. Both run by turns, alone, for the truth:
milliseconds of a step by the clock. Then both run under ``harness exec``. Asked of the slow one: the first diagnosis
has the right kind and place, and its share of a step, less what the same cause takes of the other, is within 20 % of
the truth or 1 ms. Asked of the other: the first diagnosis is not that, or costs less than 5 % of a step, or ordinary.py
has a reason why it is true. Where the remedy is one setting, ``exec --against`` tries it.

Each ordinary training (ordinary.py) runs under ``harness exec``, too: findings of 5 % or more must be true.

rows.json is written after each case. A case that has a row is not run again unless it is named. ``--page`` only judges
the rows anew. ``--shared``: a folder of further cases, each with a slow.py and a fixed.py. CASES_OTHERS: see others.py.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.campaigns.cases import others
from tests.campaigns.cases.ordinary import FIXED, Ordinary, scripts
from tests.campaigns.cases.page import JUDGED, page

HERE = Path(__file__).parent
LIMIT_S = 180.0  # of one run
TIMES = 3  # that each runs alone
AGAINST = ("--repeats", "3", "--steps", "30")
ORDINARY = ("--steps", "100")
WITHIN_SHARE, WITHIN_MS = 0.2, 1.0  # of the truth
FALSE_SHARE = 0.05  # of a step
TIMED = ("code", "gc", "lock", "evaluation")  # kinds of causes that are parts of a step


@dataclass(frozen=True)
class Case:
    """What is slow. ``kinds``: diagnoses that are right. ``place``: part of the name or the line that it must have.

    ``noted``: kind and place of a cause without a cost, which has to be found below the first diagnosis instead.
    ``source``: the public report. ``setting``: True if the remedy is one setting away: it is tried.
    """

    kinds: tuple[str, ...] = ()
    place: str = ""
    noted: str = ""
    ranks: int = 1
    source: str = "common"
    setting: bool = False


OURS = {
    "anew": Case(("input-bound",), "restart"),
    "anomaly": Case(noted="setting anomaly"),
    "average": Case(("own code",), "average.py"),
    "bar": Case(("own code",), "set_postfix"),
    "breaks": Case(noted="breaks breaks.py"),
    "buffer": Case(("input-bound",), "read", source="webdataset/webdataset#267"),
    "clipping": Case(("own code",), "row.norm"),
    "copied": Case(noted="memory loader workers"),
    "crowded": Case(("cores too few",)),
    "evaluating": Case(("evaluation-bound",)),
    "first": Case(noted="start-up first.py"),
    "forked": Case(("input-bound",), "tokenize", source="huggingface/tokenizers#258"),
    "formatting": Case(("input-bound",), "formatting.py"),
    "graphs": Case(noted="memory "),
    "guards": Case(("recompiling",), "guards.py"),
    "healthy": Case(("compute-bound",)),
    "hooks": Case(("own code",), "register_hook"),
    "logger": Case(("own code", "growing"), "json.dump"),
    "logits": Case(("evaluation-bound",), "logits.py"),
    "micro": Case(noted="setting gradient synchronization", ranks=2),
    "norms": Case(("own code",), "histc"),
    "objects": Case(("input-bound",), "transfer"),
    "printing": Case(("own code",), "print"),
    "profiler": Case(noted="setting profiler"),
    "python": Case(("own code",), "token"),
    "ranks": Case(("cores too few",), ranks=2),
    "records": Case(("input-bound",), "read"),
    "restart": Case(("input-bound",), "restart", setting=True),
    "resume": Case(noted="start-up resume.py", source="huggingface/transformers#21934"),
    "rotating": Case(("input-bound",), "read", ranks=2),
    "rows": Case(("input-bound",), "Rows.__getitem__", source="pytorch/pytorch#106704"),
    "scalars": Case(("input-bound",), "pack", source="pytorch/pytorch#123439"),
    "scanning": Case(("input-bound",), "read"),
    "snapshots": Case(("input-bound",), "read", source="meta-pytorch/data#1317"),
    "sorting": Case(("input-bound",), "sampler"),
    "staggered": Case(("synchronization-bound", "garbage collection"), ranks=2),
    "straggler": Case(("input-bound",), "read", ranks=2),
    "synced": Case(("checkpoint-bound",), "torch.save"),
    "threads": Case(("cores too few",), setting=True),
    "tokenizing": Case(("input-bound",), "tokenize"),
    "unequal": Case(("input-bound",), "read"),
    "unused": Case(noted="setting unused parameters", ranks=2),
    "validating": Case(noted="setting evaluation gradients"),
    "window": Case(("input-bound",), "Uneven.__getitem__"),
    "workers": Case(("input-bound",), "read", setting=True),
    "writer": Case(("interpreter lock",), "writer.py"),
}
SHARED = {
    "checkpoint": Case(("checkpoint-bound",), "slow.py", source="Physical-Intelligence/openpi#441", setting=True),
    "evals": Case(("evaluation-bound",), source="databrickslabs/dolly#31", setting=True),
    "everyN": Case(("input-bound",), "read", source="Lightning-AI/pytorch-lightning#1322", setting=True),
    "gc": Case(("garbage collection",), source="huggingface/peft#2894", setting=True),
    "growing": Case(("growing", "own code"), "slow.py", source="wandb/wandb#3701"),
    "inmemory": Case(("input-bound",), "read", source="pytorch/pytorch#106704"),
    "padding": Case(("padding",), source="huggingface/transformers#4842", setting=True),
    "recompile": Case(("recompiling",), source="pytorch/pytorch#105279"),
    "sampler": Case(("input-bound",), "sampler", source="pytorch/pytorch#50689"),
    "shards": Case(("input-bound",), "read", source="huggingface/datasets#8669", setting=True),
}


@dataclass(frozen=True)
class Found:
    """A diagnosis of a program. ``remedy``: as printed. ``share``: of a step without its waits for a core.

    ``noted``: kind of each cause without a cost, and its place without the line. ``at_least``: True if the saving is a
    lower bound ("at least"): ``share`` is what it says, and the truth may be larger.
    """

    kind: str
    place: str
    ms: float
    share: float
    step_ms: float
    remedy: str = ""
    noted: tuple[str, ...] = ()
    at_least: bool = False


@dataclass(frozen=True)
class Row:
    """One case. Milliseconds a step by the clock, alone, in each turn; what exec and others say."""

    name: str
    source: str
    slow_ms: list[float]
    fixed_ms: list[float]
    slow: Found
    fixed: Found
    kind_is_right: bool
    place_is_right: bool
    size_is_right: bool | None  # None: the finding has no size
    false_of_fixed: bool
    remedy_ratio: list[float] | None  # of exec --against, with its interval
    traceml: str
    gpuprof: str


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns cases")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--remedies", action="store_true", help="also measure fixes of one setting (--against)")
    parser.add_argument("--page", action="store_true", help="write the page of the rows that are there")
    given = parser.parse_args(arguments)
    jobs = _jobs(given.shared, given.remedies)
    if unknown := set(given.names) - {name for _, name in jobs}:
        parser.error(f"unknown case {', '.join(sorted(unknown))}; allowed: {', '.join(name for _, name in jobs)}")
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "rows.json"
    rows: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    for (table, name), measure in jobs.items():
        done = rows.setdefault(table, {})
        if given.page or (name not in given.names if given.names else "failed" not in done.get(name, {"failed": ""})):
            continue
        done[name] = attempted(measure)
        print(name, json.dumps(done[name]), flush=True)
        rows[table] = {key: done[key] for key in sorted(done)}
        rows["others"] = {"versions": others.versions() or rows.get("others", {}).get("versions", "")}
        path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    _judge_anew(rows, given.shared)
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    (given.out / "README.md").write_text(page(rows))
    return 0


def _judge_anew(rows: dict[str, dict[str, Any]], shared: Path | None) -> None:
    """Judge all rows by the present rules."""
    cases = OURS | SHARED
    for name, row in rows.get("cases", {}).items():
        if "failed" not in row and name in cases:
            slow, fixed = (Found(**row[variant]) for variant in ("slow", "fixed"))
            judged = judge(name, cases[name], {"slow": row["slow_ms"], "fixed": row["fixed_ms"]}, slow, fixed)
            row |= dict(zip((*JUDGED, "false_of_fixed"), judged, strict=True))
    for name, script in scripts(shared).items():
        for finding in rows.get("ordinary", {}).get(name, {}).get("findings", ()):
            finding["true"] = script.verdict(finding["kind"], finding["share"])


def _jobs(shared: Path | None, remedies: bool) -> dict[tuple[str, str], Callable[[], dict[str, Any]]]:
    """Return what measures each row, by table and name."""
    found: dict[tuple[str, str], Callable[[], dict[str, Any]]] = {}
    for name, case in sorted((OURS | (SHARED if shared else {})).items()):
        words = {one: _words(name, case, one, shared) for one in ("slow", "fixed")}
        found["cases", name] = partial(measured, name, replace(case, setting=case.setting and remedies), words)
    for name, script in scripts(shared).items():
        found["ordinary", name] = partial(examined, script)
    return found


def _words(name: str, case: Case, variant: str, shared: Path | None) -> list[str]:
    if name in OURS or shared is None:
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.ranks)]
        return [*(ranks if case.ranks > 1 else ()), str(HERE / "programs" / f"{name}.py"), variant]
    return [str(shared.resolve() / name / f"{variant}.py")]


def attempted(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the row that ``measure`` returns, or one with the reason why there is none."""
    try:
        return measure()
    except subprocess.TimeoutExpired as error:
        return {"failed": f"a run took longer than {error.timeout:.0f} s"}
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:]
        return {"failed": f"a run ended with code {error.returncode}: {' '.join(last)}"}
    except (ValueError, LookupError) as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def measured(name: str, case: Case, words: dict[str, list[str]]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="harness-cases-") as folder:
        walls: dict[str, list[float]] = {"slow": [], "fixed": []}
        for _ in range(TIMES):
            for variant, command in words.items():
                walls[variant].append(_wall_ms([sys.executable, *command], Path(folder)))
        slow, fixed = (found(_exec(words[one], Path(folder, one)))[0] for one in ("slow", "fixed"))
        ratio = _tried(words, Path(folder, "against")) if case.setting else None
        printed = [
            tool(words["slow"], Path(folder, tool.__name__)) if case.ranks == 1 else "not run with several ranks"
            for tool in (others.traceml, others.gpuprof)
        ]
    judged = judge(name, case, walls, slow, fixed)
    return asdict(
        Row(name, case.source, walls["slow"], walls["fixed"], slow, fixed, *judged, ratio, printed[0], printed[1])
    )


def judge(
    name: str, case: Case, walls: dict[str, list[float]], slow: Found, fixed: Found
) -> tuple[bool, bool, bool | None, bool]:
    """Return if the kind, the place, too, and the size, too, are right; and if a cause is named that the fixed lacks.

    Sizes are compared as shares of a step: both wander together with the load of the machine. Causes without a cost
    have none.
    """
    if case.noted:
        right = case.noted in slow.noted
        return right, right, None, case.noted in fixed.noted
    kind = slow.kind in case.kinds
    place = kind and case.place in slow.place
    share = statistics.median(1 - fixed / slow for slow, fixed in zip(walls["slow"], walls["fixed"], strict=True))
    least_share = WITHIN_MS / statistics.median(walls["slow"])
    same = name != "healthy" and fixed.kind in case.kinds and case.place in fixed.place
    remains = fixed.ms / (slow.ms / slow.share) if same and fixed.kind == slow.kind and slow.share else 0.0
    above = slow.share - remains - share
    tolerance = max(least_share, WITHIN_SHARE * share)
    size: bool | None = name == "healthy" or (above if slow.at_least else abs(above)) <= tolerance
    if size and slow.at_least:
        size = None  # A bound is no size, but may be false.
    reason = Ordinary((), FIXED.get(name, {})).verdict(fixed.kind, fixed.share)
    return kind, place, size if place else False, same and fixed.share >= FALSE_SHARE and not reason


def examined(script: Ordinary) -> dict[str, Any]:
    """Return what exec finds in an ordinary training, with why each finding is true ("" if it is false)."""
    with tempfile.TemporaryDirectory(prefix="harness-cases-") as folder:
        summary = _exec(script.words, Path(folder, "ordinary"), ORDINARY, script.command)
    findings = [one for one in found(summary) if one.share >= FALSE_SHARE]
    return {"findings": [asdict(one) | {"true": script.verdict(one.kind, one.share)} for one in findings]}


def _wall_ms(command: Sequence[str], folder: Path) -> float:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    walls = re.findall(r"WALL ([\d.]+) ms/step", done.stdout)  # of each rank
    return statistics.mean(map(float, walls))


def _exec(
    words: Sequence[str], folder: Path, options: Sequence[str] = (), python: Sequence[str] = (sys.executable,)
) -> dict[str, Any]:
    """Return summary.json of the program under ``harness exec``."""
    folder.mkdir()
    command = [sys.executable, "-m", "harness", "exec", "--out", str(folder / "studies"), *options, "--", *python]
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[2])}
    done = subprocess.run(
        [*command, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    summaries = list(folder.glob("studies/*/*/summary.json"))
    if len(summaries) != 1:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    content: dict[str, Any] = json.loads(summaries[0].read_text())
    return content


def found(summary: dict[str, Any]) -> list[Found]:
    """Return the diagnoses as the first screen has them: of the rank for which the others wait, the first one first."""
    from harness.show.text.findings import REMEDIES

    arms = [one for one in summary["arms"].values() if one["diagnoses"]]
    arm = max(arms, key=lambda one: one["wall"]["step_ms"]["median"] - _part_ms(one, "ranks"))
    step_ms = arm["wall"]["step_ms"]["median"]
    core_ms = _part_ms(arm, "core")
    causes = (one for one in arm.get("slow_causes", ()) if one["kind"] not in TIMED)
    noted = tuple(f"{one['kind']} {one.get('place', '').partition(':')[0]}" for one in causes)
    diagnoses = []
    for one in arm["diagnoses"]:
        place = " ".join(str(one["part"][key]) for key in ("name", "code", "called"))
        of_ms = step_ms if one["kind"] == "cores too few" else step_ms - core_ms
        remedy = REMEDIES.get(one["remedy"], one["remedy"])
        ms = one["ms"]["median"]
        saving = one["saving"] or {}
        at_least = bool(saving) and saving["ci_high"] is None and saving["ci_low"] == saving["median"]
        share = 1 - 1 / saving["median"] if at_least else ms / of_ms
        diagnoses.append(Found(one["kind"], place.strip(), ms, share, step_ms, remedy, noted, at_least))
    return diagnoses


def _part_ms(arm: dict[str, Any], kind: str) -> float:
    return float(sum(part["ms"]["median"] for part in arm["parts"] if part["kind"] == kind))


def _tried(words: dict[str, list[str]], folder: Path) -> list[float] | None:
    """Return how many times as fast the fixed program is, with its interval; None if not decided."""
    options = ("--against", shlex.join([sys.executable, *words["slow"]]), *AGAINST)
    try:
        (compared,) = _exec(words["fixed"], folder, options)["comparisons"]
    except (subprocess.SubprocessError, ValueError):
        return None
    ratio = compared["measured_ratio"]
    return None if ratio is None else [ratio["median"], ratio["ci_low"], ratio["ci_high"]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
