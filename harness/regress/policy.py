"""Define every number that decides in a regression check. Shares are fractions of the baseline's figure."""

from __future__ import annotations

# Limits up to which a change counts as the same.
STEP_WITHIN = 0.01
"""Share of the step's time, if both sides alternate. tests/harness/regress/test_policy.py"""
MEMORY_WITHIN = 0.05
"""Share of peak memory. Allocators round up by a few per cent. tests/harness/regress/test_gate.py"""
STARTUP_WITHIN = 0.2
"""Share of the start-up. Imports read files that may be in the page cache or not. tests/harness/regress/test_gate.py"""
ALTERNATED_WITHIN = "1%"
"""The default of a test whose sides alternate. tests/harness/regress/test_policy.py"""
APART_WITHIN = "5%"
"""The default of a test across days, which the machine's drift moves. tests/harness/regress/test_policy.py"""
DAY_LOSSES_WITHIN = 0.05
"""Share of the loss. Other kernels and summation orders change it by less. tests/harness/regress/test_policy.py"""

HIGH_GAP_MIN = 3.0
"""Multiple of the others' scatter. Blocks of one kind rarely exceed it by chance. tests/harness/regress/test_gate.py"""

# Times at which a decision is tried.
FIRST_LOOK = 4
"""Blocks. At three, Student's quantile hides all but huge changes. tests/harness/regress/test_decision.py"""
LOOK_GROWTH = 1.5
"""Blocks at a look / at the one before. Few looks share the allowed error. tests/harness/regress/test_decision.py"""
MOST_BLOCKS_WORTH = 1000
"""Blocks. A check that needs more is not practical. tests/harness/regress/test_policy.py"""
MOST_BLOCKS_PLANNED = 200
"""Blocks. No budget of time lasts for more. tests/harness/regress/test_run.py"""
HOPELESS_BLOCKS = 2
"""Blocks. A side that failed in each of them will fail again. tests/harness/regress/test_policy.py"""

# Rounds of a run, and parts that are left out.
ROUNDS_PER_RUN = 16
"""Rounds that a run without repetitions is cut into: enough for a median. tests/harness/regress/test_series.py"""
NOTICEABLE_PART = 0.01
"""Share of the step. A phase or stage below it gets no line. tests/harness/regress/test_policy.py"""
MS_DIGITS = 6
"""Decimals of milliseconds in a baseline, that is nanoseconds. tests/harness/regress/test_policy.py"""
REGRESSION_SENTENCES_MAX = 5
"""Comparisons with a sentence each at the top of a page. tests/harness/regress/test_policy.py"""

# Variation between days, for studies of different times.
MIN_SESSIONS = 3
"""Kept sessions. With two, Student's quantile of 12.7 hides most changes. tests/harness/regress/test_across.py"""
SESSION_APART_H = 6.0
"""Hours between sessions. Studies closer in time share the machine's state. tests/harness/regress/test_policy.py"""
KEPT_SESSIONS = 30
"""Sessions in a baseline file. More hardly narrow the quantile. tests/harness/regress/test_baselines.py"""
DAY_DEVIATION = 0.08
"""Standard deviation of a day's logarithm, as 2-core virtual machines drift. tests/harness/regress/test_across.py"""
COMMON_MOVE_ARMS = 3
"""Arms. Two move alike by chance. tests/harness/regress/test_across.py"""
COMMON_MOVE_SHARE = 0.5
"""Smallest / largest change. Arms that differ by more have different causes. tests/harness/regress/test_across.py"""
