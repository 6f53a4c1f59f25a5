"""A profiling-first performance harness for LLM training: where the time went, and what a change buys."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.attach.for_accelerate import AccelerateTracker
    from harness.attach.for_lightning import LightningCallback
    from harness.attach.for_transformers import HarnessCallback
    from harness.attach.hooks import record, span, step
    from harness.commands.api import load, run

__all__ = [
    "AccelerateTracker",
    "HarnessCallback",
    "LightningCallback",
    "__version__",
    "load",
    "record",
    "run",
    "span",
    "step",
]
__version__ = "0.1.0"
# What is public, and the module that has it: loaded when it is asked for, as the command line needs none of it and each
# framework is only there for those who use it.
_PLACES = {
    "record": "harness.attach.hooks",
    "span": "harness.attach.hooks",
    "step": "harness.attach.hooks",
    "HarnessCallback": "harness.attach.for_transformers",
    "LightningCallback": "harness.attach.for_lightning",
    "AccelerateTracker": "harness.attach.for_accelerate",
    "load": "harness.commands.api",
    "run": "harness.commands.api",
}


def __getattr__(name: str) -> object:
    if name in _PLACES:
        from importlib import import_module

        found: object = getattr(import_module(_PLACES[name]), name)
        return found
    raise AttributeError(f"module 'harness' has no attribute {name!r}")
