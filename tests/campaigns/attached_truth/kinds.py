"""``python -m tests.campaigns attached_truth.kinds --work DIR --out FOLDER``.

Is any loss changed, and every step counted? The same small training over loaders of many kinds, and loops whose steps
end in many ways, each without the agent and with it: the losses of all steps to the last digit, and the number of steps
that were recorded.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from harness.attach.frames import AttachedProcess, read
from harness.attach.steps import write_tables
from tests.harness.attach.running import SHAPES, Ran, kinds, losses, run_all

PACKAGES = ("torch", "torchdata", "datasets")


@dataclass(frozen=True)
class Outcome:
    """One program, without and with the agent. ``counted``: steps that were recorded; ``faults``: of ours."""

    name: str
    steps: int
    identical: bool
    counted: int
    ended: tuple[int, int]
    faults: int

    @property
    def holds(self) -> bool:
        return self.identical and self.counted == self.steps > 0 and self.ended == (0, 0) and not self.faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for what the programs write")
    parser.add_argument("--out", type=Path, required=True, help="folder for README.md")
    arguments = parser.parse_args()
    work = arguments.work.absolute()
    work.mkdir(parents=True)
    loaders = [f"loaders {kind}" for kind in kinds()]
    programs = [*loaders, *SHAPES]
    plain = run_all(work / "plain", programs, None)
    seen = run_all(work / "seen", programs, work / "raw")
    processes = {one.process.pid: one for one in read(work / "raw")}
    found = {one: _outcome(one, plain[one], seen[one], processes, work) for one in programs}
    text = page([found[one] for one in loaders], [found[one] for one in SHAPES])
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "README.md").write_text(text)
    print(text)


def _outcome(name: str, plain: Ran, seen: Ran, processes: Mapping[int, AttachedProcess], work: Path) -> Outcome:
    expected, counted, faults = losses(plain.lines), 0, 0
    if (one := processes.get(seen.pid)) is not None:
        made_by = {pid: worker.made for pid, worker in processes.items()}
        place = work / "tables" / str(seen.pid)
        counted = sum(block.begun for block in write_tables(one, made_by, lambda block: place / str(block)))
        faults = len(one.noted("fault"))
    return Outcome(name, len(expected), losses(seen.lines) == expected, counted, (plain.code, seen.code), faults)


def page(loaders: list[Outcome], shapes: list[Outcome]) -> str:
    versions = ", ".join(f"{name} {found}" for name in PACKAGES if (found := _version(name)))
    lines = [
        "# Does attaching change a loss, and is every step counted?",
        "",
        "Each program runs twice, without the agent of `harness exec` and with it. identical: the losses of all steps, "
        "to the last digit. counted: steps that were recorded. The programs are "
        "[loaders.py](../../../tests/harness/attach/programs/loaders.py), "
        "[shapes.py](../../../tests/harness/attach/programs/shapes.py) and "
        "[plain.py](../../../tests/harness/attach/programs/plain.py). "
        f"`python -m tests.campaigns attached_truth.kinds --work DIR --out results/reference/attached-kinds`, on a "
        f"CPU, not run on a GPU: Python {platform.python_version()}, {versions}.",
        "",
        f"{sum(one.identical for one in loaders)} of {len(loaders)} kinds of loaders and "
        f"{sum(one.identical for one in shapes)} of {len(shapes)} shapes of a step with identical losses; every step "
        f"counted, no more and no fewer, in {sum(one.counted == one.steps for one in loaders)} and "
        f"{sum(one.counted == one.steps for one in shapes)} of them.",
    ]
    for title, rows in (("kind of loader", loaders), ("shape of a step", shapes)):
        lines += ["", f"| {title} | steps | counted | losses identical | holds |", "| --- | --- | --- | --- | --- |"]
        lines += [
            f"| {one.name.removeprefix('loaders ').removeprefix('shapes ')} | {one.steps} | {one.counted} | "
            f"{'yes' if one.identical else '**no**'} | {'yes' if one.holds else '**no**'} |"
            for one in rows
        ]
    return "\n".join(lines) + "\n"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
