"""The job probe-cost on the emulated device, beside a driver library of ours whose every answer is known."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.gpu.emulated import leased
from tests.gpu.jobs.probe_cost import CASES, FEW, scenario
from tests.gpu.pipelines import CUDA
from tests.harness.probes.nvml.test_nvml import compile_stub


@pytest.mark.nightly
@pytest.mark.slow
def test_it_measures_every_probe_and_reads_every_counter(tmp_path: Path) -> None:
    driver = tmp_path / "driver"
    driver.mkdir()
    stub = {"LD_LIBRARY_PATH": str(compile_stub(driver)), "CUDA_VISIBLE_DEVICES": "0", "NVML_STUB": ""}
    out, result = leased("probe-cost", tmp_path, stub)
    figures = {figure.name: figure for figure in result.figures}
    assert not [name for name in figures if name.endswith("failed")]
    for case in FEW:
        cost = figures[case.name]
        assert isinstance(cost.seen, float)
        assert cost.low is not None
        assert cost.high is not None
        assert cost.low <= cost.seen <= cost.high
        assert cost.holds is None
    taken = figures["sampler at 10 Hz: nvml readings taken"].seen
    assert isinstance(taken, float)
    assert 0 < taken <= 100
    readings = [figure.seen for name, figure in figures.items() if name.endswith(": a reading")]
    assert len(readings) == 10  # nine of NVML's and one of GPM
    assert all(isinstance(seen, float) and seen > 0 for seen in readings)
    assert figures["timeline: problems"].seen == 0
    content = (out / "timeline.json.gz").read_bytes()
    assert figures["timeline: size"].seen == len(content)
    assert json.loads(gzip.decompress(content))["traceEvents"]


def test_a_card_has_a_case_for_each_probe_and_a_profile_of_both_kinds() -> None:
    assert len({case.name for case in CASES}) == len(CASES) == 7
    assert CASES[-1].name == "torch_profiler"  # what it leaves behind would slow down the others
    assert sum(case.seconds for case in CASES) <= 75
    probes = scenario(CUDA["launch"], py_spy=True)["probes"]
    assert {"torch_profiler", "py_spy"} <= set(probes)
