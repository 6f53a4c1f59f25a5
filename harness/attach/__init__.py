"""Watches programs that nobody here wrote: runs a command under the agent, and makes a study of what it recorded."""

LEAST_WARMUP = 4  # steps: two early ones are watched, and the two before them build much
