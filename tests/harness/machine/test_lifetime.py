"""A process that its parent made ends with it, also where the parent was gone before it could be asked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ROOT

CHILD = (
    "import sys\nfrom harness.machine.lifetime import die_with_parent\ndie_with_parent(int(sys.argv[1])); print('on')"
)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_an_orphan_ends_at_once() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    done = subprocess.run([sys.executable, "-c", CHILD, str(gone.pid)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.slow
def test_with_its_parent_there_it_goes_on() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, str(os.getpid())], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "on\n")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel has no autogroups")
@pytest.mark.parametrize("nice", [0, 7])
def test_a_new_session_is_as_nice_as_its_process(nice: int) -> None:
    """Without that a study under ``nice`` takes as much of the machine as everything else together."""
    program = "from harness.machine.lifetime import keep_niceness; keep_niceness(); print(open(FILE).read())"
    program = program.replace("FILE", "'/proc/self/autogroup'")
    command = ["nice", "-n", str(nice), sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, start_new_session=True, timeout=60)
    expected = min(19, os.getpriority(os.PRIO_PROCESS, 0) + nice)  # the tests may be nice themselves
    assert done.stdout.split()[-1] == str(expected), done.stderr
