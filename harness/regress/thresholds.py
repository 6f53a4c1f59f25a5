"""Defines every threshold of the regression check, with its unit and the reason for its value."""

from __future__ import annotations

# What counts as the same, as a fraction of the baseline.
STEP_WITHIN = 0.01  # of the step, where both sides alternate
MEMORY_WITHIN = 0.05  # of peak memory: allocators round up by a few per cent
STARTUP_WITHIN = 0.2  # of the startup: imports read files that may or may not be in the page cache
# The same as a test writes it.
ALTERNATED, APART = "1%", "5%"  # both sides alternate; studies of different times, which differ by the machine's drift

# When a decision is tried.
FIRST_LOOK = 4  # blocks: at three, Student's quantile is so wide that only landslides would be seen
GROWTH = 1.5  # ratio of the numbers of blocks at one look and at the look before
MOST_BLOCKS_WORTH = 1000  # blocks: a question that takes more is not one for this machine
MOST_BLOCKS_PLANNED = 200  # blocks: no budget of time lasts for more
HOPELESS_AFTER = 2  # blocks in which a side failed each time: it will fail in the next one, too

# How a run is cut and what is left out.
CHUNKS = 16  # rounds that a run without repetitions is cut into: enough for a median, long enough for a mean
NOTICEABLE = 0.01  # fraction of the step: a phase or stage below it gets no line
MS_DIGITS = 6  # decimals of milliseconds in a baseline, that is nanoseconds

# Two studies of different times: what the machine does from one day to another.
MIN_SESSIONS = 3  # kept: of two, Student's quantile is 12.7, and nothing short of a disaster would be seen
SESSION_APART_H = 6.0  # hours between two sessions: studies of one afternoon share its luck, and count as one
KEPT_SESSIONS = 30  # in a baseline file: more hardly narrow the quantile
# Standard deviation of a day's logarithm, where too few sessions are kept to know it. Virtual machines of 2 cores were
# seen to drift by 8 % between days; a machine of one's own drifts less, and its sessions soon say so.
DAY_DEVIATION = 0.08

# Two studies of different times: differences too small to matter.
CLOCK_ALIKE = 0.01  # relative, of mean SM clocks
# All arms moved alike: rather the machine than the code.
COMMON_MOVE_ARMS = 3  # at least: two arms move alike by chance
COMMON_MOVE_SHARE = 0.5  # the least change is at least this share of the largest
