"""``python -m tests.gpu.lease.job NAME``: run one job in this process. The runner starts it; a person may, too."""

from __future__ import annotations

import argparse
import importlib
import platform
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from harness.machine.environment import describe_checkout
from tests.gpu.lease.place import CUDA, EMULATED, Place
from tests.gpu.lease.sheet import CUT, DONE, Result, Sheet
from tests.gpu.lease.table import JOBS


def main() -> None:
    jobs = {job.name: job for job in JOBS}
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.lease.job", description=__doc__)
    parser.add_argument("name", choices=sorted(jobs))
    parser.add_argument("--out", type=Path, required=True, help="folder of the result")
    parser.add_argument("--work", type=Path, help="scratch folder (default: a temporary one)")
    parser.add_argument("--seconds", type=float, help="time limit (default: the job's own)")
    parser.add_argument("--device", choices=(CUDA, EMULATED), default=CUDA)
    parser.add_argument("--commit", help="of the code (default: asked of git)")
    arguments = parser.parse_args()
    begun = time.monotonic()
    job = jobs[arguments.name]
    seconds = job.limit_s if arguments.seconds is None else arguments.seconds
    with tempfile.TemporaryDirectory(prefix="lease-") as scratch:
        work = arguments.work or Path(scratch)
        sheet = Sheet(_facts(arguments), arguments.out)
        sheet.result.write(arguments.out)
        place = Place(arguments.device, arguments.out, work, begun + seconds, sheet)
        importlib.import_module(job.module).run(place)
    sheet.result.status = DONE if sheet.is_whole else CUT
    sheet.result.seconds = round(time.monotonic() - begun, 1)
    sheet.result.write(arguments.out)


def _facts(arguments: argparse.Namespace) -> Result:
    import torch

    emulated = arguments.device == EMULATED
    return Result(
        job=arguments.name,
        card="emulated" if emulated else torch.cuda.get_device_name(),
        emulated=emulated,
        date=datetime.now(UTC).date().isoformat(),
        commit=arguments.commit or describe_checkout(Path(__file__).parent) or "unknown",
        torch=torch.__version__,
        cuda=torch.version.cuda or "",
        python=platform.python_version(),
    )


if __name__ == "__main__":
    main()
