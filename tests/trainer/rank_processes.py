"""Processes of ranks: forks of a server that has imported torch and the model, which takes 5 s of CPU in each rank."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

MODULES = ["trainer.loop", "torch._dynamo", "transformers.models.gpt2.modeling_gpt2"]


def rank_context() -> ForkServerContext:
    """Return the context that makes the processes. Its server computes nothing, so that it can be forked."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    return context
