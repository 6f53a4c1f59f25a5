"""Which probes each run carries, and the JSON that tells it so."""

from __future__ import annotations

import json
from typing import Any

from harness.launch.probing import probes_of
from harness.probes.probe import RunProbes
from harness.probes.profilers.py_spy import PySpySettings
from harness.probes.profilers.torch_session import TorchProfilerSettings
from harness.probes.sampler.messages import SamplerSettings
from harness.scenario.model import ProbesConfig


def declared(**keys: Any) -> dict[str, Any]:
    return ProbesConfig.model_validate(keys, strict=True).model_dump(mode="json")


def test_a_measured_run_is_only_sampled_and_a_profiled_run_has_all_that_is_declared_in_windows() -> None:
    probes = probes_of(declared(torch_profiler=True, py_spy=True), None)
    assert probes == RunProbes(settings={"sampler": SamplerSettings(host=True, nvml="auto", rate_hz=10)})
    assert probes.ledger
    assert probes_of(declared(host=False, nvml=False), None).settings == {}  # no sampling process
    profiled = probes_of(declared(torch_profiler={"active": 7}, py_spy=False), "profiled")
    assert profiled.windows
    assert profiled.settings == {"sampler": SamplerSettings(), "torch_profiler": TorchProfilerSettings(active=7)}


def test_costs_are_of_one_probe_at_a_time() -> None:
    everything = declared(torch_profiler=True, py_spy=True, nvml=True)
    assert probes_of(everything, "bare") == RunProbes(ledger=False)
    assert probes_of(everything, "with-ledger") == RunProbes()
    assert probes_of(everything, "with-host").settings == {"sampler": SamplerSettings(host=True, nvml=False)}
    assert probes_of(everything, "with-nvml").settings == {"sampler": SamplerSettings(host=False, nvml=True)}
    assert probes_of(everything, "with-py_spy") == RunProbes(settings={"py_spy": PySpySettings()})
    assert probes_of(everything, "with-torch_profiler") == RunProbes(
        settings={"torch_profiler": TorchProfilerSettings()}
    )


def test_the_json_is_the_one_that_older_states_of_the_code_read() -> None:
    """Protocol 1 and 2 (harness.launch.protocol): a change of it needs a new version there."""
    everything = declared(torch_profiler={"active": 7}, py_spy={"native": True}, sample_hz=5)
    torch_profiler = (
        '{"wait": 1, "warmup": 2, "active": 7, "repeat": 1, "shapes": false, "memory": false, "stack": false, '
        '"flops": false, "workers": true}'
    )
    py_spy = '{"rate_hz": 100, "seconds": 5.0, "native": true, "gil": false, "nonblocking": false}'
    sampler = '{"host": true, "nvml": "auto", "rate_hz": 5.0}'
    texts = {control: json.dumps(probes_of(everything, control).to_json()) for control in ("profiled", "bare", None)}
    assert texts["profiled"] == (
        f'{{"ledger": true, "sampler": {sampler}, "torch_profiler": {torch_profiler}, "py_spy": {py_spy}, '
        '"windows": true}'
    )
    assert texts["bare"] == (
        '{"ledger": false, "sampler": null, "torch_profiler": null, "py_spy": null, "windows": false}'
    )
    for control, text in texts.items():
        assert RunProbes.from_json(json.loads(text)) == probes_of(everything, control)


def test_settings_have_the_keys_and_defaults_of_the_scenario() -> None:
    everything = declared(torch_profiler=True, py_spy=True)
    assert TorchProfilerSettings().to_json() == everything["torch_profiler"]
    assert PySpySettings().to_json() == everything["py_spy"]
    assert SamplerSettings().to_json() == {
        "host": everything["host"],
        "nvml": everything["nvml"],
        "rate_hz": everything["sample_hz"],
    }
