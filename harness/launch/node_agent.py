"""Run one agent per machine of a run except the first: it forks, suspends and ends the ranks there on orders.

Started by ``launch.nodes``, it ends with the connection to the launcher. It never computes, so that it can be forked
safely.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from types import FrameType

from harness.launch.channel import Channel
from harness.launch.ending import exit_with, signal_group
from harness.launch.nodes import HELLO_S, TOKEN, interface_of, keep_alive
from harness.launch.protocol import ForkRanksOrder
from trainer.config import LaunchConfig
from trainer.json_types import section
from trainer.lifetime import die_with_parent

CONNECT_S = 5.0  # per address: one in another network may never answer


class NodeAgent:
    """Agent of the machine ``number``: follows the launcher's orders for the ranks there, grouped by run."""

    def __init__(self, number: int, connection: socket.socket, channel: Channel) -> None:
        self._number, self._connection, self._channel = number, connection, channel
        self._ranks: dict[str, dict[int, int]] = {}  # run -> rank -> process

    def serve(self) -> None:
        """Follow the launcher's orders until the connection ends. Then kill all ranks of this machine."""
        try:
            while True:
                order = self._channel.receive_node_order()
                if order["do"] == "import":
                    for module in order["modules"]:
                        importlib.import_module(module)
                    gc.collect()
                    gc.freeze()  # Imported objects stay in pages that the ranks share.
                    # After the imports, because they wait for their own child processes.
                    signal.signal(signal.SIGCHLD, self._reap)
                    self._channel.send({"event": "ready"})
                elif order["do"] == "fork":
                    self._ranks[order["run"]] = {rank: self._fork(order, rank) for rank in order["ranks"]}
                else:
                    self._signal(order["run"], order["signal"])
        except (EOFError, OSError):
            pass
        finally:
            for run in list(self._ranks):
                self._signal(run, signal.SIGKILL)

    def _fork(self, order: ForkRanksOrder, rank: int) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        agent = os.getpid()
        if (pid := os.fork()) == 0:
            exit_with(partial(self._serve_rank, order, rank, agent))
        return pid

    def _serve_rank(self, order: ForkRanksOrder, rank: int, agent: int) -> int:
        os.setsid()
        die_with_parent(agent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        own = self._connection.getsockname()[0]
        self._connection.close()
        return _serve(order, rank, own)

    def _signal(self, run: str, number: int) -> None:
        for pid in self._ranks.get(run, {}).values():
            signal_group(pid, number)
        if number == signal.SIGKILL:
            self._ranks.pop(run, None)

    def _reap(self, _number: int, _frame: FrameType | None) -> None:
        """Handle SIGCHLD: print which signal killed a rank, as rank 0 only sees that the rank is gone."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                code = os.waitstatus_to_exitcode(ended[1])
                for run, ranks in self._ranks.items():
                    for rank, pid in list(ranks.items()):
                        if pid == ended[0]:
                            del ranks[rank]
                            if code < 0:
                                ending = f"was killed by signal {-code}"
                                print(f"node {self._number}: {run}: rank {rank} {ending}", flush=True)


def _serve(order: ForkRanksOrder, number: int, own: str) -> int:
    """Serve as rank ``number``: connect from ``own`` to rank 0, follow its orders, return the exit status."""
    from harness.launch.child import serve_rank
    from trainer.ranks import Rank

    start = order["start"]
    address = start["nodes"]["address"]
    launch = LaunchConfig.model_validate(section(section(start["record"], "config"), "launch"))
    connection = socket.create_connection((address, order["meet"]["control"]), CONNECT_S)
    connection.settimeout(None)
    keep_alive(connection)
    channel = Channel(connection)
    channel.send({"event": "hello", "token": start["nodes"]["token"], "number": number, "name": socket.gethostname()})
    local_ranks = len(order["ranks"])
    rank = Rank(
        number,
        start["nodes"]["count"] * local_ranks,
        order["meet"]["store"],
        None,
        launch.timeout_s,
        address,
        number - order["ranks"][0],
        local_ranks,
        interface_of(own),
    )
    return serve_rank(start, channel, rank, other_machine=True)


def reach(port: int, addresses: Sequence[str], number: int) -> tuple[socket.socket, Channel] | None:
    """Connect to the launcher at the first of ``addresses`` that answers, as the agent of node ``number``, with the
    job's token. Return (socket, channel); None if no address answers.
    """
    for address in addresses:
        try:
            connection = socket.create_connection((address, port), CONNECT_S)
        except OSError:
            continue
        connection.settimeout(None)
        channel = Channel(connection)
        try:
            name = socket.gethostname()
            channel.send({"event": "hello", "token": os.environ[TOKEN], "number": number, "name": name})
            channel.receive_node_event(HELLO_S)
        except (EOFError, OSError, ValueError):  # Another program listens there.
            connection.close()
            continue
        keep_alive(connection)
        return connection, channel
    return None


def main() -> int:
    port, addresses = int(sys.argv[1]), sys.argv[2:]
    # srun starts an agent on each node except the first, which has number 0.
    number = int(os.environ.get("HARNESS_NODE", "0")) or int(os.environ.get("SLURM_PROCID", "0")) + 1
    connected = reach(port, addresses, number)
    if connected is None:
        hosts = ", ".join(addresses)
        print(f"node {number}: the launcher answers at none of {hosts} (port {port}): a firewall?", file=sys.stderr)
        return 1
    NodeAgent(number, *connected).serve()
    return 0


if __name__ == "__main__":
    exit_with(main)  # without waiting for threads that imports have started
