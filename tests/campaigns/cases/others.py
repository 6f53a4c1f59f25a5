"""What TraceML and gpuprof print of a program. Both live in the environment that CASES_OTHERS names, if it does."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

VARIABLE = "CASES_OTHERS"  # folder of a virtual environment with traceml-ai, gpuprof and torch
TOOLS = Path(__file__).parent / "tools"
LIMIT_S = 180.0  # of one run
UNKNOWN = "not run"


def traceml(words: Sequence[str], folder: Path) -> str:
    """Return TraceML's primary diagnosis and the section that warns, if one does."""
    command = ["run", "--run-name", "case", "--logs-dir", "logs", str(TOOLS / "under_traceml.py"), "--args", *words]
    output = _output("traceml", command, folder)
    path = folder / "logs" / "case" / "final_summary.json"
    if output is None or not path.exists():
        return UNKNOWN if output is None else "wrote no summary"
    primary = json.loads(path.read_text())["primary_diagnosis"]
    return f"{primary['status']}: {primary['summary']}"


def gpuprof(words: Sequence[str], folder: Path) -> str:
    """Return gpuprof's insights but for those of rank LOW."""
    output = _output("python", [str(TOOLS / "under_gpuprof.py"), *words], folder)
    if output is None:
        return UNKNOWN
    if "gpuprof · case" not in output:
        return "printed no summary"
    return "; ".join(re.findall(r"^ +\[(?:HIGH|MED)\] +(.*\S)", output, re.MULTILINE)) or "nothing of rank HIGH or MED"


def versions() -> str:
    """Return names and versions of both, as the environment has them."""
    code = "from importlib.metadata import version as v; print('TraceML', v('traceml-ai') + ', gpuprof', v('gpuprof'))"
    return (_output("python", ["-c", code], Path.cwd()) or "").strip()


def _output(program: str, words: Sequence[str], folder: Path) -> str | None:
    """Return what ``program`` of the environment prints, or None where there is no such program."""
    found = os.environ.get(VARIABLE)
    if found is None or not (path := Path(found, "bin", program).absolute()).exists():
        return None
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(path), *words]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout
