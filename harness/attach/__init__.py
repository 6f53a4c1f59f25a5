"""Measure the user's own programs: run a command under the agent, and create a study from its records."""

STEPS, MOST_STEPS = 60, 10_000_000  # measured steps of a block: default and maximum
LEAST_WARMUP = 4  # steps: two early steps are watched, and programs build much in the two before them
