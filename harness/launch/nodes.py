"""Start one agent on each other machine of a Slurm job, and send it the orders for the ranks there.

As in torchrun, ranks meet at the first node's address (numeric; no host name is resolved). Unlike there, ranks of
several arms stay alive and are suspended and resumed.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from harness.launch.channel import KILLED_S, Channel, readable
from harness.launch.protocol import MeetingPlace, NodeOrder, NodesMessage, StartMessage
from trainer.config import TrainerConfig
from trainer.errors import InputError
from trainer.json_types import JsonObject

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_NAME_BYTES = 15  # IFNAMSIZ without its terminator
LOOPBACK = "127."


def own_addresses() -> dict[str, str]:
    """Return {interface name: its first IPv4 address}, with loopback last."""
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:_NAME_BYTES])
            with suppress(OSError):  # The interface has no address.
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
                addresses[name] = socket.inet_ntoa(answer[20:24])
    return dict(sorted(addresses.items(), key=lambda entry: entry[1].startswith(LOOPBACK)))


def interface_of(address: str) -> str:
    """Return the name of the interface whose first IPv4 address is ``address``; "" if no interface has it."""
    return next((name for name, interface_address in own_addresses().items() if interface_address == address), "")


TOKEN = "HARNESS_NODE_TOKEN"
AGENT = "harness.launch.node_agent"
HELLO_S = 10.0  # limit for a connected agent to identify itself
NODE_LOOK_S = 1.0
# Options that detect a dead node within a minute.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))

StartAgents = Callable[[list[str], dict[str, str]], "subprocess.Popen[bytes]"]


@dataclass(frozen=True)
class _Agent:
    number: int
    name: str
    channel: Channel
    connection: socket.socket


class Nodes:
    """Agents on the other machines of this Slurm job, as seen by the launcher on the first machine."""

    def __init__(self, count: int, modules: Sequence[str], timeout_s: float, start: StartAgents | None = None) -> None:
        """Start ``count - 1`` agents (by srun), wait until they have connected, and let them import ``modules``. Raises
        InputError if srun ends, or after ``timeout_s`` seconds, which also limit the imports.
        """
        self.count = count
        self.token = secrets.token_hex(16)
        self._agents: dict[int, _Agent] = {}
        self._importing: list[_Agent] = []
        self._timeout_s = timeout_s
        addresses = list(own_addresses().values())
        with socket.create_server(("", 0), backlog=count) as listening:
            port = listening.getsockname()[1]
            command = [sys.executable, "-m", AGENT, str(port), *addresses]
            environment = {
                **os.environ,
                TOKEN: self.token,
                "TOKENIZERS_PARALLELISM": "false",  # A fork after the start of its threads would deadlock.
                "PYTHONUNBUFFERED": "1",
            }
            self._process = (start or _srun(count))(command, environment)
            try:
                self._wait(listening, time.monotonic() + timeout_s)
                self._importing = list(self._agents.values())
                for agent in self._importing:
                    agent.channel.send({"do": "import", "modules": list(modules)})
            except BaseException:
                self.close()
                raise
        self.address = self._agents[1].connection.getsockname()[0]

    def message(self, count: int) -> NodesMessage:
        """Return how a run's ranks reach rank 0, after the agents' imports. Raises InputError if one is late."""
        end_s = time.monotonic() + self._timeout_s
        while self._importing:
            agent = self._importing[0]
            while not readable(agent.connection, NODE_LOOK_S):
                self._check(end_s, "import what the runs need", {agent.number})
            try:
                agent.channel.receive_node_event(HELLO_S)
            except (EOFError, OSError) as error:  # including a timeout
                agent_name = f"the agent of node {agent.number} ({agent.name})"
                raise InputError(f"launch.torchrun.nnodes: {agent_name} ended; its output is above") from error
            del self._importing[0]
        return {"count": count, "address": self.address, "token": self.token}

    def fork(self, run: str, start: StartMessage, meet: MeetingPlace, nproc: int) -> None:
        """Order the agents to fork ``nproc`` ranks of ``run`` each. ``meet``: ports where they reach rank 0."""
        for number in range(1, start["nodes"]["count"]):
            ranks = list(range(number * nproc, (number + 1) * nproc))
            order: NodeOrder = {"do": "fork", "run": run, "start": start, "meet": meet, "ranks": ranks}
            with suppress(OSError):  # The node is gone. Rank 0 reports its missing ranks.
                self._agents[number].channel.send(order)

    def signal(self, run: str, number: signal.Signals) -> None:
        """Send the signal ``number`` to the ranks of ``run`` on the other machines, and to their workers."""
        for agent in self._agents.values():
            with suppress(OSError):
                agent.channel.send({"do": "signal", "run": run, "signal": int(number)})

    def close(self) -> None:
        """End the agents, and their ranks with them."""
        for agent in self._agents.values():
            agent.connection.close()
        try:
            self._process.wait(KILLED_S if self._agents else 0)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(KILLED_S)

    def _wait(self, listening: socket.socket, end_s: float) -> None:
        while len(self._agents) < self.count - 1:
            self._check(end_s, "come", set(range(1, self.count)) - set(self._agents))
            if readable(listening, NODE_LOOK_S):
                self._admit(listening.accept()[0])

    def _admit(self, connection: socket.socket) -> None:
        """Accept a connection as an agent's if it sends the token; close it otherwise."""
        channel = Channel(connection)
        try:
            hello = channel.receive_node_event(HELLO_S)
            number = int(hello["number"])
            if not secrets.compare_digest(str(hello.get("token")), self.token) or not 1 <= number < self.count:
                raise ValueError
            keep_alive(connection)
            channel.send({"event": "hello"})
        except (EOFError, OSError, KeyError, ValueError):
            connection.close()
            return
        self._agents[number] = _Agent(number, str(hello.get("name", "")), channel, connection)

    def _check(self, end_s: float, what: str, missing: Iterable[int]) -> None:
        """Raise InputError if srun has ended, or after ``end_s`` (monotonic): ``missing`` nodes did not do ``what``."""
        nodes = ", ".join(f"node {number}" for number in sorted(missing))
        if (code := self._process.poll()) is not None:
            raise InputError(
                f"launch.torchrun.nnodes: srun ended with exit code {code} before {nodes} joined; its output is above"
            )
        if time.monotonic() > end_s:
            late = f"{nodes} of {self.count} did not {what} within {self._timeout_s:g} s (limits.start_s)"
            raise InputError(f"launch.torchrun.nnodes: {late}")


def keep_alive(connection: socket.socket) -> None:
    """Set the connection to fail within a minute after the other machine is gone."""
    for option, value in KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def nodes_of(config: TrainerConfig) -> int:
    """Return the number of machines that a run of ``config`` uses (launch.torchrun.nnodes; 1 by default)."""
    return 1 if config.launch is None else config.launch.torchrun.nnodes


def nodes_of_record(config: JsonObject) -> int:
    """Return the number of machines in a recorded configuration, which may be from another state of the code."""
    return _of_torchrun(config, "nnodes")


def ranks_of_a_node(config: JsonObject) -> int:
    """Return the number of ranks on each machine in a recorded configuration (launch.torchrun.nproc; 1 by default)."""
    return _of_torchrun(config, "nproc")


def _of_torchrun(config: JsonObject, key: str) -> int:
    launch = config.get("launch")
    torchrun = launch.get("torchrun") if isinstance(launch, dict) else None
    value = torchrun.get(key) if isinstance(torchrun, dict) else None
    return value if isinstance(value, int) else 1


def check_nodes(configs: Iterable[TrainerConfig]) -> int:
    """Return the number of machines of the largest run. Raises InputError if this Slurm job has fewer, or is no job."""
    count = max((nodes_of(config) for config in configs), default=1)
    job_nodes = os.environ.get("SLURM_JOB_NUM_NODES", "")
    if count > 1 and (not job_nodes.isdigit() or int(job_nodes) < count):
        reason = f"this job has {job_nodes}" if job_nodes else "this is not a Slurm job"
        raise InputError(f"launch.torchrun.nnodes: {count} machines, but {reason}; leave out --here")
    return count


@contextmanager
def other_nodes(
    configs: Iterable[TrainerConfig], modules: Callable[[], Sequence[str]], timeout_s: float
) -> Iterator[Nodes | None]:
    """Start agents on the other machines that runs need, and end them after the context; None without any."""
    count = check_nodes(configs)
    if count == 1:
        yield None
        return
    nodes = Nodes(count, modules(), timeout_s)
    try:
        yield nodes
    finally:
        nodes.close()


def _srun(count: int) -> StartAgents:
    """Return a function that starts an agent on each node of this job except the first, where the launcher is."""

    def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        cores = environment.get("SLURM_CPUS_PER_TASK")  # Since Slurm 22.05, srun does not inherit it from sbatch.
        options = [f"--nodes={count - 1}", f"--ntasks={count - 1}", "--ntasks-per-node=1", "--relative=1"]
        options += ["--overlap", "--cpu-bind=none", "--unbuffered", "--export=ALL", f"--chdir={Path.cwd()}"]
        options += [f"--cpus-per-task={cores}"] if cores else []
        try:
            return subprocess.Popen(["srun", *options, *command], stdin=subprocess.DEVNULL, env=environment)
        except OSError as error:
            raise InputError(f"launch.torchrun.nnodes: srun: {error.strerror or error}") from error

    return start
