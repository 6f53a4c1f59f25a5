"""A profiling-first performance harness for LLM training: where the time went, and what a change buys."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.attach.hooks import record, span, step

__all__ = ["__version__", "record", "span", "step"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Load the hooks when they are asked for: the command line needs none of them."""
    if name in ("record", "span", "step"):
        from harness.attach import hooks

        found: object = getattr(hooks, name)
        return found
    raise AttributeError(f"module 'harness' has no attribute {name!r}")
