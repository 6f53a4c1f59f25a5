"""A real Slurm of its own: munged, slurmctld and a slurmd for each node, all on this machine, with files in one folder.

Debian's slurm-wlm and munge (apt install slurm-wlm munge) need no systemd, no accounting database and no /etc/slurm:
what finds them is SLURM_CONF. Several slurmd on one machine are told apart by name and port.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
UP_S = 180.0  # until all nodes are idle; 2 s on an idle machine
END_S = 90.0  # for jobs and daemons to end
# Places where Debian has daemons, which a user's PATH may lack.
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CryptoType=crypto/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=5
SchedulerParameters=batch_sched_delay=1,sched_interval=1
"""


def missing() -> str | None:
    """Why no Slurm can be started here; None where it can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return f"no {', '.join(absent)} here (apt install slurm-wlm munge)" if absent else None


@contextmanager
def cluster(nodes: int = 2) -> Iterator[Path]:
    """A running cluster with a partition ``main`` of ``nodes`` nodes n1, n2, ...; the path of its configuration.

    Everything that it started has ended when this ends.
    """
    with ExitStack() as started:
        # Not pytest's folder, whose name may be too long for a socket.
        folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True)))
        munge = folder / "munge"
        for place in (munge, folder / "state", *(folder / f"spool.n{n + 1}" for n in range(nodes))):
            place.mkdir(mode=0o700)
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o400)
        ports = _free_ports(nodes + 1)
        conf = folder / "slurm.conf"
        host = socket.gethostname()
        text = CONF.format(host=host, folder=folder, user=getpass.getuser(), controller_port=ports[0])
        for number, port in enumerate(ports[1:], start=1):
            text += f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=4000\n"
        text += f"PartitionName=main Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP\n"
        conf.write_text(text)

        def start(*command: str) -> None:
            started.callback(_end, _daemon(command, folder, conf))

        files = [f"--{name}-file={munge / name}" for name in ("key", "pid", "log", "seed")]
        start("munged", "--force", "--foreground", f"--socket={munge / 'socket'}", *files)
        _wait_for(lambda: (munge / "socket").exists(), folder)
        start("slurmctld", "-D", "-f", str(conf))
        for number in range(1, nodes + 1):
            start("slurmd", "-D", "-f", str(conf), "-N", f"n{number}")
        _wait_for(lambda: ask(conf, "sinfo", "--noheader", "--Node", "--format=%T").split() == ["idle"] * nodes, folder)
        started.callback(_end_jobs, conf)
        yield conf


def ask(conf: Path, *command: str) -> str:
    """What a command of Slurm prints; "" where it fails."""
    environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(conf)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False).stdout


def _daemon(command: tuple[str, ...], folder: Path, conf: Path) -> subprocess.Popen[bytes]:
    # Jobs inherit this, and a runner's own ranks or cores are none of theirs.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
    with (folder / f"{command[0]}.out").open("ab") as output:
        return subprocess.Popen(
            [shutil.which(command[0], path=PATH) or command[0], *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**kept, "PATH": PATH, "SLURM_CONF": str(conf)},
            start_new_session=True,  # Ctrl-C is for the tests
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_jobs(conf: Path) -> None:
    """Cancel what is left, and wait until it has gone: its processes are children of no daemon of ours."""
    ask(conf, "scancel", f"--user={getpass.getuser()}")
    end_s = time.monotonic() + END_S
    while ask(conf, "squeue", "--noheader") and time.monotonic() < end_s:
        time.sleep(0.1)


def _wait_for(condition: Callable[[], bool], folder: Path) -> None:
    end_s = time.monotonic() + UP_S
    while not condition():
        if time.monotonic() > end_s:
            logs = "\n".join(f"== {one.name}\n{one.read_text(errors='replace')[-2000:]}" for one in folder.glob("*.*"))
            raise AssertionError(f"Slurm did not start within {UP_S:g} s\n{logs}")
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now: Slurm takes numbers, not sockets."""
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports
