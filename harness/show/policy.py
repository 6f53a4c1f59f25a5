"""Numbers that decide what a page says, draws and lists. Each has its unit, its reason and the test that guards it."""

# What is drawn and listed

# Pictures
PICTURE_ROWS_MAX = 60
"""Rows. A taller picture cannot be read; the tables have every row. tests/harness/show/test_drawn_policy.py"""
MEMORY_CURVES_MAX = 8
"""Processes in the picture of memory; others are counted. tests/harness/show/test_drawn_policy.py"""
BANDS_MAX = 3
"""Runs. Above it intervals hide one another, and only the last of each is drawn.
tests/harness/show/test_drawn_policy.py"""
SMOOTHED_STEPS_MAX = 50
"""Steps that a point of a mean covers, at most. tests/harness/show/test_drawn_policy.py"""
SMOOTHED_FRACTION = 20
"""Times the steps of a mean. A shorter curve is drawn without its mean. tests/harness/show/test_drawn_policy.py"""
LOG_SPAN = 4
"""Ratio of the largest to the least swept value. Above it the axis is logarithmic.
tests/harness/show/test_drawn_policy.py"""

# Tables and names
OPERATORS_LISTED = 15
"""Operators of the main process in a table; others are summed. tests/harness/show/test_drawn_policy.py"""
WORKER_OPERATORS_LISTED = 8
"""Operators of a worker in a table; others are summed. tests/harness/show/test_drawn_policy.py"""
KERNELS_LISTED = 10
"""Kernels in a table: the longest. tests/harness/show/test_drawn_policy.py"""
WORKERS_LISTED = 4
"""Workers whose operators and memory are listed; others are counted. tests/harness/show/test_drawn_policy.py"""
PLACE_SHARE_MIN = 0.01
"""Share of a thread's samples. Smaller places are left out. tests/harness/show/test_drawn_policy.py"""
PLACE_FUNCTIONS = 3
"""Functions that are listed of each place. tests/harness/show/test_drawn_policy.py"""
INNERMOST_FRAMES = 4
"""Frames of a stack that are shown, from the innermost. tests/harness/show/test_drawn_policy.py"""
OUTLIERS_LISTED = 10
"""Steps in the table of outliers: the slowest. tests/harness/show/test_drawn_policy.py"""
OPERATORS_RECORDED = 30
"""Operators of each role in summary.json. tests/harness/show/test_drawn_policy.py"""
FUNCTION_NAME_LONGEST = 70
"""Characters of a function's name. The end of a longer one is left out. tests/harness/show/test_drawn_policy.py"""
RUN_KEYS_MAX = 2
"""Settings that name a run. If more differ, its folder is shorter. tests/harness/show/test_drawn_policy.py"""

# Ranks
STRAGGLER_SHARE_MIN = 0.01
"""Share of a step. A rank that others wait for less is no straggler. tests/harness/show/test_drawn_policy.py"""
WAITED_SHARE_MAX = 0.05
"""Share of a step. Longer waits for other ranks are stated, with or without a known straggler.
tests/harness/show/test_drawn_policy.py"""
RANK_KEYS_NAMED = 4
"""Settings in which the arms differ that a line names; others are "others". tests/harness/show/test_drawn_policy.py"""

# Timeline
TIMELINE_STEPS = 20
"""Steps of each run, if the scenario does not set probes.timeline_steps. tests/harness/show/test_drawn_policy.py"""
SAMPLE_MARGIN_NS = 500_000_000
"""Nanoseconds. A sample describes the time before it: one taken so soon after a window belongs to it.
tests/harness/show/test_drawn_policy.py"""
SAMPLE_GAP_NS = 1_000_000
"""Nanoseconds. py-spy reads threads one after the other: samples of one moment lie within this.
tests/harness/show/test_drawn_policy.py"""
