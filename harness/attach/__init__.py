"""Measure the user's own programs: run a command under the agent, and create a study from its records."""

STEPS, MOST_STEPS = 60, 10_000_000  # measured steps of a block: default and maximum
LEAST_WARMUP = 4  # steps: two early ones are watched, and the two before them build much
