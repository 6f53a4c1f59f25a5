"""Read facts about torch in a separate program, because the import takes seconds and a broken driver can hang."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

from harness.machine.limits import facts_of_module
from harness.machine.packages import package_version

TORCH_LIMIT_S = 90.0  # seconds; a cold import from a network file system takes a minute


@dataclass(frozen=True)
class Torch:
    """Facts of the installed torch and the CUDA devices that it can use, read by :func:`read_torch`."""

    version: str
    cuda_build: str | None
    """CUDA version of the build; None for a build without CUDA."""
    threads: int
    """Intra-op threads, as torch chooses them in this environment."""
    cpu_capability: str
    """The instruction set of its CPU kernels: AVX2, AVX512, ..."""
    import_s: float
    cuda_devices: tuple[str, ...]
    """Names of the usable devices."""
    cuda_problem: str | None
    """Why torch can use none, as torch reports it."""
    triton: str | None
    """Triton's version; None if it is not installed."""


def read_torch() -> Torch:
    """Read the facts in a separate process. Raise ImportError with the reason if torch cannot be imported.

    Raise TimeoutError after :data:`TORCH_LIMIT_S` seconds.
    """
    try:
        facts: Any = dict(facts_of_module("harness.machine.torch_facts", TORCH_LIMIT_S))
    except RuntimeError as error:
        raise ImportError(str(error)) from error
    return Torch(**{**facts, "cuda_devices": tuple(facts["cuda_devices"])})


def _look() -> Torch:
    start = monotonic()
    import torch

    import_s = monotonic() - start
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        names: list[str] = []
        problem = None
        try:
            names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
            if not torch.cuda.is_available():
                names = []
        except (RuntimeError, AssertionError) as error:
            problem = _line(error)
    if not names and problem is None and warned:
        problem = _line(warned[-1].message)
    capability: Any = torch.backends.cpu.get_cpu_capability()
    return Torch(
        version=torch.__version__,
        cuda_build=torch.version.cuda,
        threads=torch.get_num_threads(),
        cpu_capability=str(capability),
        import_s=import_s,
        cuda_devices=tuple(names),
        cuda_problem=problem,
        triton=_triton(),
    )


def _triton() -> str | None:
    versions = map(package_version, ("triton", "pytorch-triton", "triton-windows"))
    return next((version for version in versions if version is not None), None)


def _line(problem: object) -> str:
    return str(problem).strip().splitlines()[0]


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(asdict(_look())) + "\n")
