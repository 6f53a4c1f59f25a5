"""Which probes each run carries."""

from __future__ import annotations

from typing import Any

from harness.launch.probing import probes_of
from harness.scenario.model import ProbesConfig


def declared(**keys: Any) -> dict[str, Any]:
    return ProbesConfig.model_validate(keys, strict=True).model_dump(mode="json")


def test_a_measured_run_is_only_sampled() -> None:
    probes = probes_of(declared(torch_profiler=True, py_spy=True), None)
    assert probes["ledger"]
    assert probes["sampler"] == {"host": True, "nvml": "auto", "rate_hz": 10}
    assert probes["torch_profiler"] is probes["py_spy"] is None


def test_a_profiled_run_has_all_that_is_declared_in_windows() -> None:
    probes = probes_of(declared(torch_profiler={"active": 7}, py_spy=False), "profiled")
    assert probes["windows"]
    assert probes["torch_profiler"]["active"] == 7
    assert probes["py_spy"] is None


def test_costs_are_of_one_probe_at_a_time() -> None:
    everything = declared(torch_profiler=True, py_spy=True, nvml=True)
    assert probes_of(everything, "bare") == {**probes_of(everything, "with-ledger"), "ledger": False}
    assert probes_of(everything, "with-ledger")["sampler"] is None
    host, nvml = probes_of(everything, "with-host"), probes_of(everything, "with-nvml")
    assert (host["sampler"]["host"], host["sampler"]["nvml"]) == (True, False)
    assert (nvml["sampler"]["host"], nvml["sampler"]["nvml"]) == (False, True)
    for name in ("torch_profiler", "py_spy"):
        alone = probes_of(everything, f"with-{name}")
        assert alone[name] == everything[name]
        assert not alone["windows"]
        assert alone["sampler"] is None


def test_without_any_there_is_no_sampling_process() -> None:
    assert probes_of(declared(host=False, nvml=False), None)["sampler"] is None
