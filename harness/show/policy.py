"""Limits for the texts, pictures and lists of a page. Each has its unit, its reason and the test that guards it."""

# What is said

# Shares of a step
WORTH_SHARE = 0.01
"""Share of a step. Less hidden work, wait or difference gets no sentence. tests/harness/show/test_policy.py"""
HARDLY_SHARE = 0.001
"""Share of a step. Below it a step "hardly waits" for data. tests/harness/show/test_policy.py"""
WAITS_ALIKE_SHARE = 0.05
"""Share of a step. Ranks whose waits for data differ by less wait alike. tests/harness/show/test_policy.py"""
MEAN_APART_SHARE = 0.05
"""Share of the typical step. If the mean differs by more, both are given. tests/harness/show/test_policy.py"""
BEHIND_SHARE = 0.75
"""Share of hidden work. Phases that hide it are named, else "the step". tests/harness/show/test_policy.py"""
BEHIND_PHASES = 2
"""Phases. If more are needed to hide that share, none is named. tests/harness/show/test_policy.py"""
OPEN_SHARE = 0.01
"""Share of a step. Device time of unknown use below it decides nothing. tests/harness/show/test_policy.py"""
PADDED_SHARE = 0.9
"""Share of positions with a label. Below it, a note on padding in FLOPs. tests/harness/show/test_policy.py"""

# Causes of slow steps
WAIT_SHARE = 0.005
"""Share of a step. Shorter waits for the device and parts are left out. tests/harness/show/test_policy.py"""
SPENT_SHARE_MIN = 0.05
"""Share of a step. Own code and garbage collections that take less are left out. tests/harness/show/test_policy.py"""
CAUSE_PLACES = 3
"""Places of own code that a line names: the longest. tests/harness/show/test_policy.py"""
EVERY_STEP_SHARE = 0.95
"""Share of steps. From here on a cause occurs in "every step". tests/harness/show/test_policy.py"""
LOAD_ALIKE_CORES = 0.1
"""Cores. Loads of two arms that differ by less are given as one. tests/harness/show/test_policy.py"""

# The verdict card of a program
BAR_PARTS_MAX = 5
"""Rows of the bar: with more the first screen has more than 16 lines. tests/harness/show/test_verdict_card.py"""
FINDINGS_SHOWN = 3
"""Findings beside the diagnosis. More are in the details. tests/harness/show/test_verdict_card.py"""
COMMAND_LONGEST = 40
"""Characters of the command in the first line; its end is kept. tests/harness/show/test_verdict_card.py"""

# Comparisons
DOUBLED_SPEED = 1.0
"""Fraction. A resolution above it is meaningless: "not even a 2x change". tests/harness/show/test_policy.py"""
SMALL_CEILING = 0.03
"""Fraction of the speed. If data work costs less, repeat for other changes only. tests/harness/show/test_policy.py"""
LOPSIDED_RATIO = 2.0
"""Undetected loss / undetected gain. From here on both limits are given. tests/harness/show/test_policy.py"""
LOPSIDED_SHARE = 0.02
"""Fraction of the speed. A smaller undetected loss misleads no reader. tests/harness/show/test_policy.py"""

# How many
COMPARISONS_MANY = 6
"""Comparisons. From here on only some have a line of their own. tests/harness/show/test_first_screen.py"""
REMEDY_REPEATS = 3
"""Comparisons with the same remedy. Above it, all share one line. tests/harness/show/test_first_screen.py"""
DIFFERENCES_SHOWN = 4
"""Undeclared differences on the first screen. More are counted by kind. tests/harness/show/test_first_screen.py"""
STEPS_ADVISED = 5
"""Changes to try next on the first screen. More are in the details. tests/harness/show/test_policy.py"""
SAVINGS_LISTED = 8
"""Removed parts in the table, per arm: the largest savings. tests/harness/show/test_policy.py"""
SAVING_SHARE_MIN = 0.001
"""Fraction of the speed. Smaller savings are not listed. tests/harness/show/test_policy.py"""
PATH_SHARE_MIN = 0.02
"""Share of the critical path. Shorter links are not listed. tests/harness/show/test_causes.py"""
CLAIM_KEYS_NAMED = 4
"""Settings in which the arms of a claim differ as well. Others are "others". tests/harness/show/test_policy.py"""
RUNS_NAMED = 3
"""Runs that a problem names; others are counted. tests/harness/show/test_policy.py"""

# Letters and digits
NAME_FITS = 24
"""Characters. Shorter names stay: the tables of a page have room. tests/harness/show/test_names.py"""
NAME_LONGEST = 34
"""Characters of a shortened name. The middle of a longer one is left out. tests/harness/show/test_names.py"""
SMALLEST_SHARE = 0.0005
"""Fraction. Smaller ones are "under 0.1 %". tests/harness/show/test_policy.py"""
LIMIT_DIGITS = 6
"""Digits after the point, at most, that show a share above its limit. tests/harness/show/test_policy.py"""


# Limits of pictures and lists

# Pictures
PICTURE_ROWS_MAX = 60
"""Rows. A taller picture cannot be read; the tables have every row. tests/harness/show/test_policy.py"""
MEMORY_CURVES_MAX = 8
"""Processes in the picture of memory; others are counted. tests/harness/show/test_policy.py"""
BANDS_MAX = 3
"""Runs. With more, only the last interval of each is drawn. tests/harness/show/test_policy.py"""
SMOOTHED_STEPS_MAX = 50
"""Steps that a point of a mean covers, at most. tests/harness/show/test_policy.py"""
SMOOTHED_FRACTION = 20
"""Times the steps of a mean. A shorter curve is drawn without its mean. tests/harness/show/test_policy.py"""
LOG_SPAN = 4
"""Largest / least swept value. Above it the axis is logarithmic. tests/harness/show/test_policy.py"""

# Tables and names
OPERATORS_LISTED = 15
"""Operators of the main process in a table; others are summed. tests/harness/show/test_policy.py"""
WORKER_OPERATORS_LISTED = 8
"""Operators of a worker in a table; others are summed. tests/harness/show/test_policy.py"""
KERNELS_LISTED = 10
"""Kernels in a table: the longest. tests/harness/show/test_policy.py"""
WORKERS_LISTED = 4
"""Workers whose operators and memory are listed; others are counted. tests/harness/show/test_policy.py"""
PLACE_SHARE_MIN = 0.01
"""Share of a thread's samples. Smaller places are left out. tests/harness/show/test_policy.py"""
PLACE_FUNCTIONS = 3
"""Functions that are listed of each place. tests/harness/show/test_policy.py"""
INNERMOST_FRAMES = 4
"""Frames of a stack that are shown, from the innermost. tests/harness/show/test_policy.py"""
OUTLIERS_LISTED = 10
"""Steps in the table of outliers: the slowest. tests/harness/show/test_policy.py"""
BRIEF_BYTES = 2000
"""Bytes of `harness explain --json`: a page that a program reads at once. tests/harness/show/test_brief.py"""
OPERATORS_RECORDED = 30
"""Operators of each role in summary.json. tests/harness/show/test_policy.py"""
FUNCTION_NAME_LONGEST = 70
"""Characters of a function's name. The end of a longer one is left out. tests/harness/show/test_policy.py"""
RUN_KEYS_MAX = 2
"""Settings that name a run. If more differ, its folder is shorter. tests/harness/show/test_policy.py"""

# Ranks
STRAGGLER_SHARE_MIN = 0.01
"""Share of a step. A rank that others wait for less is no straggler. tests/harness/show/test_policy.py"""
WAITED_SHARE_MAX = 0.05
"""Share of a step. Longer waits for other ranks are always stated. tests/harness/show/test_policy.py"""
RANK_KEYS_NAMED = 4
"""Settings in which the arms differ that a line names; others are "others". tests/harness/show/test_policy.py"""

# Timeline
TIMELINE_STEPS = 20
"""Steps of each run, if the scenario does not set probes.timeline_steps. tests/harness/show/test_policy.py"""
SAMPLE_MARGIN_NS = 500_000_000
"""Nanoseconds. A sample taken this soon after a window describes it. tests/harness/show/test_policy.py"""
SAMPLE_GAP_NS = 1_000_000
"""Nanoseconds. py-spy's samples of one moment lie within this. tests/harness/show/test_policy.py"""
