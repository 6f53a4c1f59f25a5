"""Examine this machine for ``harness doctor``: start all readings at once, each with a timeout, and judge them."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.machine import capacity, cgroup, cpu, gpu, software, tracing
from harness.machine.capacity import Needs
from harness.machine.check import Check, judge
from harness.machine.files import ROOT, read_mounts
from harness.machine.limits import Look
from trainer.json_types import JsonObject

FILE_READ_LIMIT_S = 5.0  # timeout for plain files, which only an unresponsive disk exceeds
TOOLS_S = 3 * software.COMPILE_TRY_LIMIT_S + FILE_READ_LIMIT_S


class Examination:
    """Examination for ``harness doctor``: readings (:class:`Look`) in threads, which :meth:`checks` waits for."""

    def __init__(self, results: Path, cache: Path, environ: Mapping[str, str], root: Path = ROOT) -> None:
        """Start all readings. ``results``, ``cache``: folders to check. ``root``: file system with /proc and /sys."""
        self._environ, self._root = environ, root
        self._load_found: cpu.Load | None = None
        self._before = cpu.read_counters(cpu.allowed_cpus(root), root)
        # Programs have their own timeout, after which they are killed. It is shorter, so that they do not outlive us.
        self.torch = Look(software.read_torch, software.TORCH_LIMIT_S + FILE_READ_LIMIT_S)
        self.imports = Look(software.read_imports, software.IMPORT_LIMIT_S + software.KILL_S + FILE_READ_LIMIT_S)
        self.nvml = Look(gpu.read_nvml, gpu.NVIDIA_SMI_LIMIT_S + FILE_READ_LIMIT_S)
        self.py_spy = Look(tracing.try_py_spy, 2 * tracing.TRACE_TRY_LIMIT_S + FILE_READ_LIMIT_S)
        self.toolchain = Look(lambda: software.read_toolchain(environ, read_mounts(root)), TOOLS_S)
        self.batch_system = Look(software.read_batch_system, software.SLURM_LIMIT_S + FILE_READ_LIMIT_S)
        self.processor = Look(lambda: cpu.read_processor(root), FILE_READ_LIMIT_S)
        self.frequency = Look(lambda: cpu.read_frequency(self.processor.result().allowed, root), FILE_READ_LIMIT_S)
        self.clock = Look(lambda: cpu.read_clock(root), FILE_READ_LIMIT_S)
        self.cpu_group = Look(lambda: cgroup.find_group("cpu", root), FILE_READ_LIMIT_S)
        self.quota = Look(lambda: cgroup.cpu_quota(self.cpu_group.result()), FILE_READ_LIMIT_S)
        self.cpuset = Look(lambda: cgroup.cpuset(cgroup.find_group("cpuset", root)), FILE_READ_LIMIT_S)
        self.memory = Look(lambda: capacity.read_memory(root), FILE_READ_LIMIT_S)
        self.memory_limit = Look(lambda: cgroup.memory_limit(cgroup.find_group("memory", root)), FILE_READ_LIMIT_S)
        self.shared_memory = Look(lambda: capacity.read_shared_memory(read_mounts(root), root), FILE_READ_LIMIT_S)
        self.permissions = Look(lambda: tracing.read_permissions(root), FILE_READ_LIMIT_S)
        self.driver = Look(lambda: gpu.driver_loaded(root), FILE_READ_LIMIT_S)
        self.results = Look(lambda: capacity.read_storage(results, read_mounts(root)), FILE_READ_LIMIT_S)
        self.cache = Look(lambda: capacity.read_storage(cache, read_mounts(root)), FILE_READ_LIMIT_S)

    def checks(
        self, threads: int | None, needs: Needs | None = None, fit: Callable[[], Iterable[Check]] = tuple
    ) -> list[Check]:
        """Wait for the readings and return all lines, in the order of display. A failed reading gives a warning line.

        ``threads``: number for the check of this CPU's profile; None: torch's. ``needs``: a scenario's needs; ``fit``:
        returns the checks of whether it fits here.
        """
        lines: list[tuple[str, Callable[[], Check | Iterable[Check]]]] = [
            ("python", software.check_python),
            ("packages", self._imports),
            ("torch", self._torch),
            ("driver", lambda: gpu.check_driver(self.driver.result(), self.nvml.result())),
            ("nvml", lambda: gpu.check_nvml(self.driver.result(), self.nvml.result())),
            ("cuda", lambda: gpu.check_cuda(self.torch.result(), self.nvml.result(), self._environ)),
            ("compile", lambda: software.check_compile(self.toolchain.result(), self.torch.result())),
            ("ptrace", self._ptrace),
            ("cores", lambda: cpu.check_cores(self.processor.result(), self.cpuset.result())),
            ("numa", lambda: cpu.check_numa(self.processor.result())),
            ("quota", self._quota),
            ("slurm", lambda: cpu.check_slurm(self._environ, self.processor.result())),
            ("slurm jobs", lambda: software.check_batch_system(self.batch_system.result())),
            ("threads", self._threads),
            ("tokenizers", lambda: software.check_tokenizers(self._environ)),
            ("clock", lambda: cpu.check_clock(self.clock.result())),
            ("frequency", lambda: cpu.check_frequency(self.frequency.result(), self.processor.result())),
            ("memory", lambda: capacity.check_memory(self.memory.result(), self.memory_limit.result())),
            ("swap", lambda: capacity.check_swap(self.memory.result())),
            ("/dev/shm", lambda: capacity.check_shared_memory(self.shared_memory.result())),
            ("open files", lambda: capacity.check_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))),
            ("needs", lambda: [] if needs is None else capacity.check_needs(needs)),
            ("memory need", fit),
            ("results", lambda: capacity.check_storage("results", self.results.result(), "--out DIR")),
            ("cache", lambda: capacity.check_storage("cache", self.cache.result(), "export HARNESS_CACHE=DIR")),
            ("load", self._load),
            ("profile", lambda: self._profiles(threads)),
            ("profiles", gpu.check_shipped),
        ]
        return [line for name, check in lines for line in judge(name, check)]

    def facts(self) -> JsonObject:
        """Return every reading as JSON by name; a failed one as {"problem": reason}. Call :meth:`checks` first."""
        looks = {name: _plain(look) for name, look in vars(self).items() if isinstance(look, Look)}
        return {**looks, "load": None if self._load_found is None else asdict(self._load_found)}

    def _imports(self) -> Iterable[Check]:
        return software.check_imports(self.imports.result(), torch_works=self._torch_problem() is None)

    def _torch(self) -> Check:
        problem = self._torch_problem()
        return software.check_torch(self.torch.result()) if problem is None else software.no_torch(problem)

    def _torch_problem(self) -> str | None:
        try:
            self.torch.result()
        except (ImportError, OSError, ValueError) as error:  # A timeout is an OSError.
            return str(error)
        return None

    def _ptrace(self) -> Check:
        remedy = tracing.remedy(self._root, self._environ)
        return tracing.check_ptrace(self.permissions.result(), self.py_spy.result(), remedy)

    def _quota(self) -> Check:
        quota = self.quota.result()
        throttled = None if quota is None else cgroup.throttling(quota.folder, quota.version)
        return cpu.check_quota(quota, throttled, self.cpu_group.result(), self.processor.result())

    def _threads(self) -> Check:
        processor = self.processor.result()
        return cpu.check_threads(self.torch.result().threads, processor, self.quota.result(), self._environ)

    def _load(self) -> Check:
        """Return the line on other processes' use of our cores. Run it last, after our own programs have ended."""
        processor = self.processor.result()
        if self._before is not None:
            time.sleep(self._before.missing_s())
            later = cpu.read_counters(processor.allowed, self._root)
            self._load_found = None if later is None else cpu.load_between(self._before, later)
        return cpu.check_load(self._load_found, processor)

    def _profiles(self, threads: int | None) -> Iterable[Check]:
        torch = self.torch.result()
        yield gpu.check_cpu_profile(threads or torch.threads, needed=not torch.cuda_devices)
        yield from gpu.check_cuda_profiles(torch.cuda_devices)


def _plain(look: Look[Any]) -> Any:
    try:
        value = look.result()
    except Exception as error:
        return {"problem": str(error)}
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value
