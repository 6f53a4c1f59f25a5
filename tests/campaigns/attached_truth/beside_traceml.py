"""``python -m tests.campaigns attached_truth.beside_traceml --traceml PROGRAM --work DIR --out FOLDER``.

``--nanogpt FOLDER`` adds nanoGPT. What TraceML says of the same programs with slow reading and slow tokenizing, beside
what ``harness exec`` says. Each program runs as it is; only the plain loop marks its steps for TraceML, as its manual
asks (``trace_step``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns.attached_truth import common
from tests.campaigns.attached_truth.common import INJECTED_MS, NANOGPT, environment

STEPS = 150  # TraceML wants as many as it can get


@dataclass(frozen=True)
class Case:
    program: str
    slow: str | None  # stage
    words: Sequence[str]  # the script and its arguments
    folder: Path
    imported: Path | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traceml", type=Path, required=True, help="its program, beside a Python that has torch too")
    parser.add_argument("--work", type=Path, required=True, help="folder for what both write")
    parser.add_argument("--out", type=Path, required=True, help="folder for README.md")
    parser.add_argument("--nanogpt", type=Path, help="a clone of nanoGPT; without it that program is left out")
    arguments = parser.parse_args()
    work, traceml = arguments.work.absolute(), arguments.traceml.absolute()
    work.mkdir(parents=True)
    parts = []
    for number, case in enumerate(_cases(work, arguments.nanogpt)):
        print(f"{case.program}, {case.slow or 'nothing slow'}", file=sys.stderr, flush=True)
        parts.append(_section(case, _traceml(case, traceml, work, number), _ours(case, work / f"ours-{number}")))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "README.md").write_text(_page(traceml, parts))


def _cases(work: Path, nanogpt: Path | None) -> Iterator[Case]:
    for name in common.PROGRAMS:
        for slow in (None, "read", "tokenize"):
            yield Case(name.removesuffix("_loop"), slow, common.words_of(name, 0, STEPS), work)
    if nanogpt is not None:
        folder = common.copy_nanogpt(nanogpt, work)
        for slow in (None, "read"):
            yield Case(NANOGPT, slow, common.words_of_nanogpt(STEPS), folder, common.SLOW_MEMMAP)


def _traceml(case: Case, program: Path, work: Path, number: int) -> str:
    script, *given = case.words
    name = f"run-{number}"
    words = [str(program), "run", "--run-name", name, "--logs-dir", str(work / "logs"), script, "--args", *given]
    variables = environment(case.slow, INJECTED_MS, work / f"slept-{number}", case.imported)
    variables |= {"MARK_FOR_TRACEML": "1", "PYTHONPATH": str(case.imported or "")}  # another Python: nothing of ours
    subprocess.run(words, cwd=case.folder, env=variables, capture_output=True, text=True, timeout=900)
    found = json.loads((work / "logs" / name / "final_summary.json").read_text())["primary_diagnosis"]
    return f"{found['status']}: {found['summary']} {found['action']}"


def _ours(case: Case, out: Path) -> str:
    out.mkdir()
    variables = environment(case.slow, INJECTED_MS, out / "slept", common.ROOT, case.imported)
    lines = common.harness_exec(out, (), [sys.executable, *case.words], variables, case.folder).splitlines()
    first = next((place for place, line in enumerate(lines) if "a step by the clock" in line), 0)
    last = next((place for place, line in enumerate(lines) if line.startswith("page: ")), len(lines))
    return "\n".join(lines[first:last])


def _section(case: Case, theirs: str, ours: str) -> str:
    slow = f"{case.slow} {INJECTED_MS:g} ms slower a batch" if case.slow else "nothing slow"
    quoted = "\n".join(f"    {line}" for line in ours.splitlines())
    return f"## {case.program}, {slow}\n\nTraceML: **{theirs.strip()}**\n\nharness exec:\n\n{quoted}\n"


def _page(traceml: Path, parts: list[str]) -> str:
    python = traceml.with_name("python")
    command = "from importlib.metadata import version as v; print(v('traceml-ai'), v('torch'))"
    versions = subprocess.run([str(python), "-c", command], capture_output=True, text=True, check=True).stdout.split()
    head = (
        "# The same programs under TraceML and under `harness exec`\n\n"
        f"traceml-ai {versions[0]} with torch {versions[1]}, each in summary mode, beside `harness exec`; no loader "
        "workers, on this CPU. Each program runs as it is (TraceML attaches itself to HF Trainer and Lightning); only "
        "the plain loop marks its steps for TraceML, as its manual asks. What both print is quoted, nothing is left "
        "out of the first screen. `python -m tests.campaigns attached_truth.beside_traceml`.\n\n"
    )
    return head + "\n".join(parts)


if __name__ == "__main__":
    main()
