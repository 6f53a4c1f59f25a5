"""NVML and GPM on a real card: what the counters say while it works. Run it there with `python -m pytest tests/gpu`."""

from __future__ import annotations

import os
import time

import pyarrow as pa
import pytest
import torch

from harness.explain.probes.samples import split
from harness.judge.probes.machine_load import device_health
from harness.probes.sampler.messages import SamplerSettings
from harness.probes.sampler.sampler import Sampler
from harness.study.contract import SAMPLE_COLUMNS, arrow_schema
from harness.study.records import RunFacts, RunRecord
from harness.study.run_data import ProbesRecord, RunData

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
SECONDS = 4


def test_a_card_at_work_is_seen_at_work() -> None:
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    sampler = Sampler(SamplerSettings(nvml=True), lambda: {os.getpid(): "main"})
    sampler.begin_steps()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for _ in range(20):
            matrix @ matrix
        torch.cuda.synchronize()
    sampler.end_repetition()
    sampler.close()
    print("\n".join(["", *sampler.problems]), f"taken {sampler.taken}, missed {sampler.missed}")
    samples = pa.table(sampler.samples, schema=arrow_schema(SAMPLE_COLUMNS))
    for (source, metric), found in sorted(split(samples).items()):
        print(f"{source} {metric}: {len(found.values)} samples, mean {found.values.mean():.6g}")
    record = RunRecord("arm", 0, "done", facts=RunFacts(asynchronous=True))
    reported = ProbesRecord(taken_samples=sampler.taken, missed_samples=sampler.missed)
    card = device_health({"arm": [RunData(record, None, None, samples, reported)]})[0]
    assert card.utilisation is not None
    assert card.utilisation > 0.5
    assert card.power_w is not None
    assert card.energy_j is not None
    assert card.energy_j == pytest.approx(card.power_w * SECONDS, rel=0.3)  # two instruments of the card's
    assert card.memory_used_bytes is not None
    assert card.memory_used_bytes >= matrix.nbytes
    assert card.sm_clock_mhz is not None
    gpm_missing = any("SM, tensor and DRAM activity" in problem for problem in sampler.problems)
    if not gpm_missing:
        assert card.sm_active is not None
        assert card.tensor_active is not None
        assert card.sm_active > 0.5
        assert card.tensor_active > 0.2
    own = split(samples)["host:sampler", "cpu_s"].values.sum() / split(samples)["host", "interval_s"].values.sum()
    print(f"the sampler's own CPU: {own:.4f} s per s")
    assert sampler.taken["nvml"] > SECONDS * 5
