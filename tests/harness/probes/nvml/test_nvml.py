"""The real nvidia-ml-py in a real sampling process, over a driver library of ours whose every answer is known."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import statistics
import subprocess
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.probes.machine_load import device_health, host_load
from harness.probes.nvml.collector import open_nvml, visible
from harness.probes.nvml.metrics import is_sibling
from harness.probes.sampler.messages import SamplerSettings, SampleSeries
from harness.probes.sampler.sampler import Sampler
from harness.show.machine import section
from harness.study.contract import SAMPLE_COLUMNS, arrow_schema
from harness.study.records import RunRecord
from harness.study.run_data import ProbesRecord, RunData
from trainer.inject import spend

pytestmark = pytest.mark.slow

STUB = Path(__file__).with_name("nvml_stub.c")
LASTING_MS = 180.0  # longer than the card's refresh time
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
GAUGES = {
    "power_w": 300.0,
    "utilisation_percent": 90.0,
    "memory_utilisation_percent": 60.0,
    "sm_clock_mhz": 1980.0,
    "memory_clock_mhz": 2619.0,
    "throttle_reasons": 4.0,
    "temperature_c": 62.0,
    "memory_used_bytes": 8e9,
    "memory_total_bytes": 80e9,
}
BY_GPM = {
    "sm_active_percent": 80.0,
    "sm_occupancy_percent": 3.0,
    "tensor_active_percent": 5.0,
    "dram_active_percent": 10.0,
    "pcie_tx_bytes_per_s": 20 * 2.0**20,
    "pcie_rx_bytes_per_s": 21 * 2.0**20,
    "nvlink_tx_bytes_per_s": 61 * 2.0**20,
    "nvlink_rx_bytes_per_s": 60 * 2.0**20,
}


def compile_stub(folder: Path, *flags: str) -> Path:
    if COMPILER is None:
        pytest.skip("no C compiler here to build the stub driver library with")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([COMPILER, "-shared", "-fPIC", *flags, "-o", str(library), str(STUB)], check=True)
    return folder


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Path:
    return compile_stub(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def stub(driver, monkeypatch):
    """The sampling process finds our library: the loader reads LD_LIBRARY_PATH when a process starts."""

    def use(case: str = "", folder: Path = driver, visible: str | None = "0") -> None:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
        monkeypatch.setenv("NVML_STUB", case)
        monkeypatch.setenv("NVML_STUB_PID", str(os.getpid()))
        monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return use


def sample(
    nvml: object = "auto", repetitions: int = 1, host: bool = False, spent_ms: float = LASTING_MS, how: str = "sleep"
) -> Sampler:
    """Of repetitions that sleep, or spend CPU time, for so long, however long that takes beside others."""
    settings = SamplerSettings(host=host, nvml=nvml, rate_hz=50, timeout_s=2 if host else 9)
    sampler = Sampler(settings, lambda: {os.getpid(): "main"})
    for _ in range(repetitions):
        sampler.begin_steps()
        spend(spent_ms, how)
        sampler.end_repetition()
        sampler.wait()
    sampler.close()
    return sampler


def by_metric(sampler: Sampler, source: str = "nvml:0") -> dict[str, list[float]]:
    found = defaultdict(list)
    columns = (sampler.samples[name] for name in ("source", "metric", "value"))
    for at, metric, value in zip(*columns, strict=True):
        if at == source:
            found[metric].append(value)
    return dict(found)


def run_of(sampler: Sampler) -> dict[str, list[RunData]]:
    samples = pa.table(sampler.samples, schema=arrow_schema(SAMPLE_COLUMNS))
    reported = ProbesRecord(taken_samples=sampler.taken, missed_samples=sampler.missed)
    return {"plain": [RunData(RunRecord("plain", 0, "done"), None, None, samples, reported)]}


def test_every_metric_of_a_card_with_gpm_and_in_the_report_under_its_name(stub) -> None:
    stub()
    sampler = sample(repetitions=2, host=True, how="busy")
    found = by_metric(sampler)
    energy = found.pop("energy_j")
    assert {metric: set(found.pop(metric)) for metric in GAUGES} == {name: {value} for name, value in GAUGES.items()}
    assert {metric: set(found.pop(metric)) for metric in BY_GPM} == {name: {value} for name, value in BY_GPM.items()}
    assert set(found.pop("other_processes")) == {1.0}  # process 1; this one is the run's own
    assert set(found.pop("other_memory_bytes")) == {2e9}
    assert not found
    # A joule for each call of the stub: the first call of each repetition counts for nothing.
    assert sum(energy) == len(energy) == sampler.taken["nvml"] > 2
    assert sampler.problems == ["nvml:0 (Stub A): no C2C traffic sent, C2C traffic received: Not Supported"]

    runs = run_of(sampler)
    (load,), (card,) = host_load(runs), device_health(runs)
    main = next(role for role in load.roles if role.role == "main")
    assert all(value is not None for value in vars(main).values())
    assert sum(by_metric(sampler, "host:main")["cpu_s"]) == pytest.approx(2 * LASTING_MS / 1e3, abs=0.1)
    assert 0 < main.cores < 1.5
    assert load.page_cache_bytes is not None
    assert load.taken == sampler.taken["host"]
    unknown = {name for name, value in vars(card).items() if value is None}
    assert unknown == {"joules_per_token", "joules_per_trained_token"}  # this run had no steps
    assert set(card.traffic) == {"pcie_rx", "pcie_tx", "nvlink_rx", "nvlink_tx"}
    assert card.throttled == {"its power limit": 1.0}
    text = section([load], [card], sampler.problems)
    assert "plain, device 0: throttled by its power limit in 100 % of the samples" in text
    assert "no C2C traffic sent" in text


def test_a_card_without_gpm_says_so_and_tells_its_traffic_otherwise(stub) -> None:
    stub("no_gpm")
    sampler = sample()
    found = by_metric(sampler)
    assert sampler.problems == [
        "nvml:0 (Stub A): no SM, tensor and DRAM activity, C2C traffic: this card has no GPM (Hopper and newer have)"
    ]
    assert found["pcie_tx_bytes_per_s"][0] == 1e6  # once a second, alternately with what it received
    sent, received = found["nvlink_tx_bytes_per_s"], found["nvlink_rx_bytes_per_s"]
    assert statistics.median(sent) == pytest.approx(2**30, rel=0.5)
    assert received == pytest.approx([2 * value for value in sent])
    assert "sm_active_percent" not in found


def test_what_needs_permission_is_reported_once_and_the_rest_goes_on(stub) -> None:
    stub("no_permission")
    sampler = sample()
    found = by_metric(sampler)
    assert sampler.problems == [
        "nvml:0 (Stub A): no SM, tensor and DRAM activity, C2C traffic, energy: Insufficient Permissions",
        "nvml:0 (Stub A): no other processes on the card: Insufficient Permissions",
    ]
    assert len(found["power_w"]) == sampler.taken["nvml"]
    assert "energy_j" not in found


def test_a_card_that_disappears_is_reported_once_and_host_sampling_goes_on(stub) -> None:
    stub("lost", visible="0")
    sampler = sample(repetitions=2, host=True)
    assert "nvml:0 (Stub A): lost after 3 samples: GPU is lost" in sampler.problems
    assert sum("lost" in problem for problem in sampler.problems) == 1
    assert by_metric(sampler)["energy_j"] == [1.0, 1.0, 1.0]
    assert sampler.taken["nvml"] == 3
    assert sampler.missed["nvml"] >= sampler.taken["host"] - 3
    assert by_metric(sampler, "host:main")["cpu_s"]


@pytest.mark.parametrize(("case", "problem", "power_w"), [
    ("hangs", "nvml: the driver gave no answer within 2 s; its samples stop here", [300.0, 300.0]),
    ("hangs_at_once", "nvml: the driver gave no answer within 2 s; check nvidia-smi, or set probes.nvml: false", None),
    ("odd_name", "nvml: cannot be used: UnicodeDecodeError: ", None),  # which the bindings cannot read
])  # fmt: skip
def test_a_driver_in_trouble_costs_its_own_samples_only(stub, case, problem, power_w) -> None:
    stub(case)
    sampler = sample(repetitions=2 if power_w else 1, host=True)
    (found,) = (one for one in sampler.problems if "C2C" not in one)
    assert found.startswith(problem)
    assert by_metric(sampler).get("power_w") == power_w
    assert by_metric(sampler, "host:main")["cpu_s"]


def test_repetitions_too_short_for_gpm_are_named_as_the_reason(stub) -> None:
    stub()
    for _ in range(3):  # a neighbour that holds the core makes repetitions long enough
        sampler = sample(repetitions=3, spent_ms=5)
        if max(sampler.samples["t_ns"]) - min(sampler.samples["t_ns"]) < 100e6:
            break
    reason = "no repetition lasted as long as the card's refresh time (100 ms); raise slice_steps"
    assert f"nvml:0 (Stub A): no SM, tensor and DRAM activity, link traffic (GPM): {reason}" in sampler.problems
    assert "sm_active_percent" not in by_metric(sampler)


def test_what_one_driver_does_not_tell_is_asked_otherwise_or_left_out(stub) -> None:
    """It refuses a question for one metric, reports no reasons for throttling, and the host's process ids."""
    stub("old_metrics no_reasons container")
    sampler = sample()
    found = by_metric(sampler)
    assert {metric: set(found[metric]) for metric in BY_GPM} == {name: {value} for name, value in BY_GPM.items()}
    assert "other_processes" not in found
    reasons = {line.rpartition(": no ")[2] for line in sampler.problems}
    assert reasons == {
        "throttle reasons: Not Supported",
        "C2C traffic sent, C2C traffic received: Not Supported",
        "other processes on the card: NVML reports process ids of the host, not of this container",
    }
    (card,) = device_health(run_of(sampler))
    assert card.throttled is None
    assert "0.0 %" not in section([], [card])


def test_an_older_driver_is_asked_in_the_older_way(stub, tmp_path) -> None:
    stub("", compile_stub(tmp_path, "-DOLD_DRIVER"))
    sampler = sample()
    found = by_metric(sampler)
    assert set(found["throttle_reasons"]) == {4.0}
    assert set(found["temperature_c"]) == {61.0}
    assert set(found["other_processes"]) == {1.0}
    assert sampler.problems == [
        "nvml:0 (Stub A): no SM, tensor and DRAM activity, C2C traffic: this driver is older than the metric"
    ]


def test_without_a_driver_auto_is_silent_and_true_says_so(stub) -> None:
    stub("not_loaded")
    quiet, loud = sample("auto"), sample(True)
    assert (quiet.problems, quiet.taken) == ([], {})
    assert loud.problems == ["nvml: cannot be used: Driver Not Loaded"]
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        assert open_nvml(SampleSeries(), "auto") == (None, [])
        (problem,) = open_nvml(SampleSeries(), True)[1]
        assert problem.startswith("nvml: no NVIDIA driver here (libnvidia-ml.so.1: ")


def test_the_other_arms_of_a_study_are_no_strangers_on_the_card() -> None:
    """Suspended arms keep their memory on the card. They are children of the same fork server, or of
    another one of the same study."""
    parent = ["sh", "-c", "sleep 60 & echo $!; wait"]
    template = [*parent, "harness.launch.fork_server"]
    with ExitStack() as stack:
        first, second, stranger = (_grandchild(stack, command) for command in (template, template, parent))
        other = _grandchild(stack, ["sh", "-c", f"{shlex.join(template)} & wait"])
        assert is_sibling(second, {first})
        assert not is_sibling(stranger, {first})
        assert not is_sibling(other, {first}), "a study of another harness process"
        assert not is_sibling(os.getpid(), {first})


def _grandchild(stack: ExitStack, command: list[str]) -> int:
    """Start ``command``, which starts a process and prints its number; both end with ``stack``."""
    process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True))
    stack.callback(os.killpg, process.pid, signal.SIGTERM)
    assert process.stdout is not None
    return int(process.stdout.readline())


@pytest.mark.parametrize(("declared", "power_w"), [("GPU-bbbb,0", {"nvml:0": 500.0, "nvml:1": 300.0}), ("", {})])
def test_cards_are_those_that_cuda_sees_under_its_numbers(stub, declared, power_w) -> None:
    stub(visible=declared)
    sampler = sample(True)
    found = {source: by_metric(sampler, source) for source in {*sampler.samples["source"]}}
    assert {source: max(metrics["power_w"]) for source, metrics in found.items()} == power_w
    if not power_w:
        assert sampler.problems == ["nvml: no visible card (CUDA_VISIBLE_DEVICES)"]


def test_a_mig_slice_has_its_own_memory_and_activity_and_the_card_s_power(stub) -> None:
    stub(visible="MIG-cccc0000-1111-2222-3333-444455556666")
    sampler = sample()
    found = by_metric(sampler)
    assert set(found["memory_total_bytes"]) == {10e9}
    assert set(found["sm_active_percent"]) == {35.0}
    assert set(found["power_w"]) == {500.0}
    assert any("a MIG slice" in problem for problem in sampler.problems)
    assert "nvml:0 (Stub B MIG): no utilisation: Not Supported" in sampler.problems


UUIDS = ["GPU-aaaa", "GPU-bbbb", "GPU-bbcc"]


@pytest.mark.parametrize(
    ("declared", "left"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        (" 1 , GPU-a", [1, 0]),
        ("0,7,1", [0]),  # the first that is not there ends the list
        ("GPU-bb,0", []),  # one that fits two cards is none
        ("MIG-1,0", ["MIG-1", 0]),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(declared, left) -> None:
    assert visible(declared, UUIDS) == left


@given(st.lists(st.integers(-2, 5)), st.integers(0, 4))
def test_visible_devices_are_a_prefix_of_what_is_declared(indices, count) -> None:
    left = visible(",".join(map(str, indices)), [f"GPU-{index}" for index in range(count)])
    assert left == indices[: len(left)]
    assert all(0 <= index < count for index in left)
    assert len(left) == len(indices) or not 0 <= indices[len(left)] < count
