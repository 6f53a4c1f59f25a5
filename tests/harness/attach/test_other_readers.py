"""Other tools open the torch.profiler files of ``harness exec``: each rank, and each profiled step.

``HTA_PYTHON``: a Python with HolisticTraceAnalysis. ``TRACELENS_PYTHON``: one with AMD's TraceLens (which the package
index lacks). Without them nothing is tried.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROFILED_STEPS = 3
PROGRAM = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for (batch,) in DataLoader(TensorDataset(torch.randn(800, 64)), batch_size=16):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""
READERS = {  # prints the ranks, and the number of profiled steps of each
    "HTA_PYTHON": """
import json, sys
from hta.trace_analysis import TraceAnalysis
traces = TraceAnalysis(trace_files=dict(enumerate(sys.argv[1:])), include_last_profiler_step=True).t
names = {rank: traces.get_trace(rank)["name"].map(traces.symbol_table.get_sym_table().__getitem__) for rank in (0, 1)}
print(json.dumps({rank: int(found.str.startswith("ProfilerStep#").sum()) for rank, found in names.items()}))
""",
    "TRACELENS_PYTHON": """
import json, sys
from TraceLens import TreePerfAnalyzer
trees = [TreePerfAnalyzer.from_file(profile_filepath=path).tree for path in sys.argv[1:]]
steps = [sum(event["name"].startswith("ProfilerStep#") for event in tree.events) for tree in trees]
print(json.dumps(dict(enumerate(steps))))
""",
}


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "train.py").write_text(PROGRAM)
    options = ["--profile", "torch", "--profile-steps", str(PROFILED_STEPS), "--out", str(folder / "results")]
    run = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(folder / "train.py")]
    command = [sys.executable, "-m", "harness", "exec", *options, "--", sys.executable, "-m", *run]
    subprocess.run(command, check=True, timeout=500, stdout=subprocess.DEVNULL)
    return sorted((folder / "results").rglob("torch_profile.json.gz"))


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("variable", READERS)
def test_another_tool_finds_every_rank_and_step(variable: str, profiles: list[Path]) -> None:
    if variable not in os.environ:
        pytest.skip(f"{variable} is not set")
    command = [os.environ[variable], "-c", READERS[variable], *map(str, profiles)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"0": PROFILED_STEPS, "1": PROFILED_STEPS}
