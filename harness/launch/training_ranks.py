"""Connects the ranks of a training: rank 0 decides the next action, the other ranks follow."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from harness.launch.block import modules_of
from harness.launch.channel import Channel
from harness.launch.protocol import OWN, BareOrder, RunOrder, StartMessage
from harness.launch.ranks import OtherRanks, Serve
from harness.launch.training_progress import Goal
from trainer.config import TrainerConfig
from trainer.ranks import ALONE, Rank, gloo_group, least, total

if TYPE_CHECKING:
    from trainer.data.position import DataPosition
    from trainer.evaluate import Kind


class TrainingRanks:
    """Connection of one rank of a training to the others; without effect for a single rank."""

    def __init__(self, config: TrainerConfig, goal: Goal, rank: Rank = ALONE, orders: Channel | None = None) -> None:
        """Create the link. ``orders``: channel from rank 0; None in rank 0."""
        self.rank = rank
        self._config, self._goal = config, goal
        self._orders = orders
        self._others: OtherRanks | None = None
        self._group: Any = None  # set if ranks may differ in tokens or epochs
        self._begun_at = 0, 0  # tokens at the checkpoint: counted by rank 0, and by all ranks
        self._agreed = (-1, 0.0, 0)  # steps, finished share, tokens of all ranks

    def fork(self, serve: Serve) -> None:
        """Import all modules, which takes seconds, then fork the other ranks; each runs ``serve``."""
        launch = self._config.launch
        if launch is None or self._config.ranks == 1:
            return
        for module in (*OWN.preloaded, *modules_of([self._config.model_dump(mode="json")])):
            importlib.import_module(module)
        start = cast("StartMessage", {})  # A forked rank has the message's content already.
        null_device = os.open(os.devnull, os.O_RDONLY)
        self._others = OtherRanks(start, self._config.ranks, launch.timeout_s, serve, null_device)
        os.close(null_device)
        self.rank = self._others.rank

    def watch(self) -> None:
        """Read reports in threads, after the workers are forked. A hang with a failed rank ends the process."""
        if self._others is not None:
            self._others.watch(_exit_at_once)

    def send(self, order: RunOrder) -> None:
        """Send ``order`` from rank 0 to the other ranks."""
        if self._others is not None:
            self._others.send(order)

    def wait_until_done(self) -> bool:
        """Return True once all ranks are done; False for one rank. Raises RankFailedError."""
        if self._others is not None:
            self._others.wait("done")
        return self._others is not None

    def explain(self, error: Exception) -> str | None:
        """Return a line on the rank that caused ``error`` in rank 0, and its reason; None if it was rank 0 itself."""
        return None if self._others is None else self._others.explain(error)

    def end(self) -> None:
        """Accept from now on that the other ranks end: it is not a failure any more."""
        if self._others is not None:
            self._others.end()

    def join(self) -> None:
        """Open the group (in every rank) to agree on progress, if shards or batches may differ."""
        by_tokens = self._goal.tokens is not None and self._config.data.source
        if self.rank.of > 1 and (self._goal.epochs is not None or by_tokens):
            self._group = gloo_group(self.rank)

    @property
    def agree(self) -> bool:
        """True if the ranks exchange their progress, because it may differ."""
        return self._group is not None

    def begin_at(self, tokens: int, of_all: int) -> None:
        """Set the tokens at the checkpoint: ``tokens`` as rank 0 counted them, ``of_all`` as counted by all ranks."""
        self._begun_at = tokens, of_all

    def share(self, steps: int, tokens: int, position: DataPosition) -> float:
        """Return the finished share (1 at the goal), with epochs that of the slowest rank. Call it in every rank.

        ``tokens``: counted by this rank, as if all other ranks had received as many.
        """
        if self._agreed[0] != steps or self._group is None:
            if self._group is not None:
                before, of_all = self._begun_at
                tokens = of_all + round(total(tokens - before, self._group) / self.rank.of)
            share = self._goal.share(steps, tokens, position.epochs)
            self._agreed = steps, share if self._group is None else least(share, self._group), tokens
        return self._agreed[1]

    @property
    def tokens(self) -> int:
        """Tokens that all ranks together had received at the last call of :meth:`share`."""
        return self._agreed[2]

    def lacking(self, find: Callable[[], frozenset[Kind]]) -> frozenset[Kind]:
        """Return the kinds of passes that may be missing: rank 0 calls ``find`` and sends the result."""
        if self._orders is not None:
            order = self._orders.receive_order()
            assert order["do"] == "lacking"
            return frozenset(order["passes"])
        passes = find()
        self.send({"do": "lacking", "passes": sorted(passes)})
        return passes

    def next_order(self, decide: Callable[[], BareOrder]) -> str:
        """Return the next order: rank 0 calls ``decide`` and sends the result."""
        if self._orders is not None:
            return self._orders.receive_order()["do"]
        order = decide()
        self.send(order)
        return order["do"]


def _exit_at_once(line: str) -> None:
    """Print ``line`` and end this process, which hangs with a failed rank. The last checkpoint is kept."""
    print(f"failed: {line}", file=sys.stderr, flush=True)
    os._exit(1)
