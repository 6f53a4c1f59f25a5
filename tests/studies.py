"""Runs scenarios as a user does, and makes other states of the code to run them with."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import Any

import yaml

from harness.study.store import StudyFolder
from tests.commands import ROOT, harness


def run_study(content: dict[str, Any], folder: Path, *words: str) -> StudyFolder:
    """Run a scenario, with more ``words`` for `harness run`; the study's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scenario.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    done = harness("run", str(folder / "scenario.yaml"), "--out", str(folder), *words)
    assert done.returncode == 0, done.stderr[-3000:]
    return StudyFolder(max((folder / content["name"]).iterdir()))


def unpacked(study: str, folder: Path) -> StudyFolder:
    """Unpack the tables of a study on a card (``results/reference/gpu/STUDY/study.tar.xz``) into ``folder``."""
    with tarfile.open(ROOT / "results" / "reference" / "gpu" / study / "study.tar.xz") as tables:
        tables.extractall(folder, filter="data")
    return StudyFolder(folder / study)


def copy_code(folder: Path, path: str, before: str, after: str) -> Path:
    """This code in ``folder``, with ``after`` for ``before`` in the file at ``path``; the folder."""
    copy_packages(folder)
    text = (folder / path).read_text()
    assert before in text
    (folder / path).write_text(text.replace(before, after))
    for compiled in (folder / path).parent.glob(f"__pycache__/{Path(path).stem}.*"):
        compiled.unlink()
    return folder


def copy_packages(folder: Path) -> None:
    """What a run needs of this code, into ``folder``, compiled as it is here: that takes each process 2 s of CPU."""
    for name in ("harness", "trainer", "profiles"):
        shutil.copytree(ROOT / name, folder / name)
