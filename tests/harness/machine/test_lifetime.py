"""A process that its parent made ends with it, also where the parent was gone before it could be asked."""

import os
import subprocess
import sys

import pytest

CHILD = "import sys\nfrom trainer.lifetime import die_with_parent\ndie_with_parent(int(sys.argv[1])); print('on')"


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
