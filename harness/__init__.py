"""A profiling-first performance harness for LLM training: where the time went, and what a change buys."""

__version__ = "0.1.0"
