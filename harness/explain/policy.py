"""Defines the numbers that decide what analysis counts, bounds or leaves out. Other modules import them from here."""

from __future__ import annotations

# Blocks and intervals

CONFIDENCE = 0.95
"""Probability. Level of every interval that no caller chooses. tests/harness/explain/test_statistics.py"""
MIN_BLOCKS = 3
"""Blocks. Two values say nothing about their own spread: no interval. tests/harness/explain/test_statistics.py"""
INDEPENDENT_BLOCKS = 0.7
"""Probability, before any block is seen, that blocks are independent. tests/harness/explain/test_statistics.py"""
INDEPENDENT_BLOCKS_ALONE = 0.4
"""The same without an A/A control, whose blocks would show correlation. tests/harness/judge/test_comparisons.py"""

# Steps that are unlike the others

LONG_STEP_FACTOR = 3.0
"""Multiple of a typical step. A step above it is long. tests/harness/explain/test_long_steps.py"""
LONG_STEPS_SHARE_MAX = 0.25
"""Share of the steps. More long steps are no exception. tests/harness/explain/test_policy.py"""
KINDS_STEPS_MIN = 80
"""Steps. Fewer leave the middle empty by chance. tests/harness/explain/test_step_kinds.py"""
KINDS_STEPS_DRAWN = 100_000
"""Steps. So many of more are drawn: shares are then off by 0.3 %. tests/harness/explain/test_policy.py"""
KIND_SHARE_MIN = 0.15
"""Share of the steps. A rarer kind is an exception (long steps). tests/harness/explain/test_step_kinds.py"""
KINDS_RATIO_MIN = 1.25
"""Slow / fast. Closer kinds are one kind. tests/harness/explain/test_step_kinds.py"""
KINDS_BETWEEN_MAX = 0.05
"""Share of the steps midway between both kinds. More are one kind. tests/harness/explain/test_step_kinds.py"""
KIND_RUNS_SPREAD = 0.07
"""Share of the distance between kinds. Runs of a kind lie no further apart. tests/harness/explain/test_policy.py"""
KIND_RUNS_MIN = 2
"""Runs of each kind, if each run has one kind. tests/harness/explain/test_step_kinds.py"""
NEAR_MEAN_SHARE = 0.1
"""Share of the mean. A step within it is like the mean. tests/harness/explain/test_step_kinds.py"""
OUTLIER_QUARTILES = 3.0
"""Quartile ranges above the upper quartile (Tukey's far-out values). tests/harness/explain/test_step_times.py"""
STEP_OUTLIERS_MAX = 200
"""Outliers of a run that the picture shows, the slowest. tests/harness/explain/test_step_times.py"""
STEP_POINTS_MAX = 6_000
"""Steps of a study that the picture shows. A page with more opens slowly. tests/harness/explain/test_step_times.py"""

# Steps that get longer

TREND_STEPS_MIN = 40
"""Measured steps. Fewer do not tell a trend from a warm-up. tests/harness/explain/test_trend.py"""
TREND_BINS = 20
"""Parts of a run. A median of each hides single long steps. tests/harness/explain/test_trend.py"""
TREND_RATIO_MIN = 1.2
"""Last / first. Clocks and other processes drift by less. tests/harness/explain/test_trend.py"""
TREND_QUARTER_MIN = 0.15
"""Share of an even rise. A quarter that rises less ends a warm-up, not a trend. tests/harness/explain/test_trend.py"""
TREND_ALIKE_MIN = 0.75
"""Smallest / largest rise of the parts. Rises alike mean a slower machine. tests/harness/explain/test_trend.py"""
TREND_PART_MIN = 0.1
"""Share of a step. A shorter part does not show whether all rise. tests/harness/explain/test_trend.py"""
TREND_BEFORE_MAX = 0.25
"""Share of the measured steps, before them. Earlier growth may differ. tests/harness/explain/test_trend.py"""
TREND_WORK_MAX = 0.5
"""Share of the rise. If batches grow by more, longer steps do more work. tests/harness/explain/test_trend.py"""

# Losses

LOSS_STEPS = 10
"""Steps. Losses are compared by their mean over the last ones. tests/harness/explain/test_policy.py"""
DIVERGED_TIMES = 2.0
"""Last loss / first loss. A run above it, and above DIVERGED_BY, diverged. tests/harness/explain/test_policy.py"""
DIVERGED_BY = 1.0
"""Nats. A small loss may double by chance. tests/harness/explain/test_policy.py"""

# Limits of a step

LIMIT_SHARE_MIN = 0.05
"""Share of a step. Less idle time, or less room, limits nothing. tests/harness/explain/test_policy.py"""
LOADERS_BUSY_SHARE = 0.9
"""Share of the loader workers' time. Above it they limit a step that waits. tests/harness/explain/test_policy.py"""
ROOM_FELT_SHARE = 0.1
"""Share of the time added to fetches. A step that feels no more has room. tests/harness/explain/test_room.py"""
ROOM_STEPS_MAX = 1_000
"""Measured steps at each end of a run: each trial walks all of them. tests/harness/explain/test_policy.py"""
ROOM_QUEUED_MAX = 5_000
"""Pieces of device work that may lie queued before the first step. tests/harness/explain/test_policy.py"""
ROOM_TRIES = 12
"""Lengths tried. The room is known to the 4,096th part of a step. tests/harness/explain/test_room.py"""
HELD_STEPS_MIN = 10
"""Steps. Fewer do not tell a full queue from one that fills. tests/harness/explain/test_room.py"""
HELD_IDLE_NS_MAX = 100_000
"""Nanoseconds per step. A device behind a full queue idles no longer. tests/harness/explain/test_room.py"""
HELD_BLOCKED_SHARE = 0.005
"""Share of a step. A recorded blocking call that is shorter holds no host. tests/harness/explain/test_room.py"""

# Device work

LAUNCH_TAIL_NS = 100_000
"""Nanoseconds. A device that waits for launches ends soon after the last. tests/harness/explain/test_launch_bound.py"""
LAUNCH_TAIL_SHARE = 0.02
"""Share of a bracket, if longer: the last of 50 kernels. tests/harness/explain/test_launch_bound.py"""
SHORT_LAUNCHES_SHARE = 0.05
"""Share of device time. Launches below the tail count if they sum to more. tests/harness/attach/test_closing.py"""
FULL_QUEUE_NS = 1_000_000
"""Nanoseconds. CUDA queues 1,024 launches, and a kernel takes 1 us. tests/harness/explain/test_room.py"""
OPEN_DEVICE_SHARE = 0.01
"""Share of a step. Less open time counts as busy. tests/harness/explain/test_launch_bound.py"""
FILLED_PIECE_SHARE = 0.95
"""Share of a bracket. More profiled kernel time fills it. tests/harness/explain/test_profiled_window.py"""
SELDOM_WORK_SHARE = 0.05
"""Share of the pieces of one name. Fewer open ones are ignored. tests/harness/explain/test_launch_bound.py"""
CLOCK_TOLERANCE_NS = 200_000
"""Nanoseconds between clocks. Work that ends later was not awaited. tests/harness/explain/replay/test_recording.py"""

# Loader workers

WORKER_ROUNDS_MIN = 2
"""Batches per worker. A worker that made none of so many has no items. tests/harness/explain/replay/test_makers.py"""
UNEQUAL_WORKER_FACTOR = 1.5
"""Multiple of an equal share. A worker above it made others' batches. tests/harness/explain/replay/test_makers.py"""
SLOW_WORKER_FACTOR = 1.25
"""Multiple of the others' median per batch. Above it a worker is slow. tests/harness/explain/replay/test_makers.py"""
SLOW_WORKER_BATCHES_SHARE = 0.75
"""Share of its batches above that median; half by chance. tests/harness/explain/replay/test_makers.py"""
SLOW_WORKER_BATCHES_MIN = 20
"""Batches of a worker. Fewer could all be long by chance. tests/harness/explain/replay/test_makers.py"""
LONG_READ_FACTOR = 10.0
"""Multiple of the median read. A longer one loads what others read. tests/harness/explain/test_loading.py"""
LONG_READS_MIN = 4
"""Long reads. Fewer do not show an interval. tests/harness/explain/test_loading.py"""
LONG_READS_SHARE_MAX = 0.2
"""Share of the reads. More long ones are no exception. tests/harness/explain/test_loading.py"""
LONG_READS_SPREAD_MAX = 0.25
"""Share of the median gap between long reads, for its quartile range. By chance it is about 1.
tests/harness/explain/test_loading.py"""
LONG_READS_TIME_MIN = 0.5
"""Share of the time of all reads. Long ones that take less are not its cause. tests/harness/explain/test_loading.py"""
WORKER_HELD_SHARE = 0.1
"""Share of making a batch. A shorter gap is the worker's own. tests/harness/explain/test_lead.py"""
FIRST_FETCH_MS_MIN = 2000.0
"""Milliseconds. Loader workers start in less on a busy machine. tests/harness/attach/test_program_causes.py"""
CHEAP_ROW_US_MAX = 20.0
"""Microseconds of CPU time. Calling a dataset for a row of a tensor and stacking the rows takes 5 to 15; a row that
takes more does work of its own. tests/harness/judge/test_diagnosis.py"""
LEAD_BATCHES_MIN = 6
"""Batches. Fewer say little, as batches differ. tests/harness/explain/test_lead.py"""
LEAD_SHARE_MIN = 0.01
"""Share of a step. Lead used up faster is reported. tests/harness/explain/test_policy.py"""
EXPOSED_ABOVE_WORK_MAX = 0.01
"""Share of the time. Exposed stages exceed their work by no more. tests/harness/explain/test_policy.py"""

# Memory of a long run

KEPT_SPANS_MAX = 1_000_000
"""Spans of a run kept in memory, about 30 MB. tests/harness/explain/test_policy.py"""
KEPT_MAKERS_MAX = 2**20
"""Batches whose makers are kept. A replay needs fewer. tests/harness/explain/test_policy.py"""
WORKER_NUMBER_MAX = 10_000
"""Worker numbers. A larger one in a role is a damaged record. tests/harness/explain/test_policy.py"""

# Doses

HIDDEN_SLOPE_MAX = 0.2
"""ms per ms. A slope is hidden if its interval lies below. tests/harness/explain/test_dose.py"""
EXPOSED_SLOPE_MIN = 0.8
"""ms per ms. A slope is exposed if its interval lies above. tests/harness/explain/test_dose.py"""
PARTIAL_SLOPE_MARGIN = 0.1
"""ms per ms. A partial slope keeps so far from 0 and 1. tests/harness/explain/test_dose.py"""
KINK_BEND_MIN = 0.2
"""ms per ms. The curve bends up if its last slope exceeds the first by more. tests/harness/explain/test_dose.py"""
DOSE_ADDED_MIN = 0.05
"""Share of the work. A largest dose that adds less dosed nothing. tests/harness/explain/test_dose.py"""
DOSE_BLOCKS_MAX = 1_000
"""Blocks. No study is repeated more often. tests/harness/explain/test_dose.py"""

# Ranks

STRAGGLER_BLOCKS_SHARE = 0.8
"""Share of the blocks that must name the same rank and part. tests/harness/explain/test_stragglers.py"""
STRAGGLER_ERRORS_MIN = 3.0
"""Standard errors. A smaller excess is scatter. tests/harness/explain/test_stragglers.py"""
RANK_STEPS_UNLIKE = 0.03
"""Share of a step. Ranks that differ more do not wait for one another. tests/harness/explain/test_ranks.py"""

# Costs that ended

ENDED_SHARE_MAX = 0.1
"""Share of a step's former cost. A cost that fell to more goes on. tests/harness/explain/test_ended.py"""
ENDED_STEPS_SHARE_MIN = 0.25
"""Share of the steps. A cost that has not come for fewer may come again. tests/harness/explain/test_ended.py"""
ENDED_GAPS_MIN = 3
"""Multiple of the longest gap between two steps with the cost. After fewer it may come again.
tests/harness/explain/test_ended.py"""

# Causes and stacks

NAMED_LINE_SHARE_MIN = 0.02
"""Share of a step. Shorter lines of own code stay in "other". tests/harness/explain/test_wall.py"""
STAGE_LINE_SHARE_MIN = 0.5
"""Share of the fetch. A line with more of it is in the longest stage. tests/harness/explain/test_wall.py"""
NAMED_LINES_MAX = 4
"""Lines of own code that are parts of a step: the longest. tests/harness/explain/test_wall.py"""
EVALUATED_SHARE_MIN = 0.3
"""Share of the evaluations. A line that takes less is not their place. tests/harness/explain/test_wall.py"""
HELD_SHARE_MIN = 0.4
"""Share of a thread's time with the interpreter's lock. A busy core may take it from a thread that holds it shortly.
tests/harness/attach/test_steps.py"""
HOOKS_ADDED_MIN = 3
"""Hooks. Libraries add one or two once; more are added again and again. tests/harness/attach/test_program_causes.py"""
LOOKS_MIN = 2
"""Looks at settings. One does not show that a setting stays on. tests/harness/attach/test_program_causes.py"""
SYNCED_PASSES_MIN = 1.5
"""Backward passes a step that synchronize. Accumulation needs one. tests/harness/attach/test_program_causes.py"""
MEMORY_READINGS_MIN = 5
"""Steps with a reading, but for the first third. Fewer show no trend. tests/harness/attach/test_program_causes.py"""
EVEN_GROWTH_MIN = 0.25
"""Share of the growth in each half. Less is a single rise. tests/harness/attach/test_program_causes.py"""
GROWN_BYTES_MIN = 16e6
"""Bytes. Allocators keep as much. tests/harness/attach/test_program_causes.py"""
MEMORY_FULL_S = 24 * 3600.0
"""Seconds until memory is full. Later than a day is no matter. tests/harness/attach/test_program_causes.py"""
GC_CAUSE_SHARE = 0.5
"""Share of the time at a place. Collections that take more are its cause. tests/harness/explain/test_policy.py"""
ROUGH_PLACE_SHARE = 1 / 3
"""Share of the samples near a boundary. More make a place rough. tests/harness/explain/probes/test_stacks.py"""
KEPT_STACKS = 5
"""Functions and stacks kept of each place. tests/harness/explain/probes/test_stacks.py"""

# Replay: records

SUSPENDED_NS_MIN = 20_000_000
"""Nanoseconds. A longer gap before warm-up means a stopped run. tests/harness/explain/replay/test_recording.py"""
REPLAYED_STEPS_MAX = 5_000
"""Measured steps. More say little more, and a million take hours. tests/harness/explain/test_policy.py"""
HELD_WORK_SHARE = 0.5
"""Share of the host's work in a step. Less extra time is scatter. tests/harness/explain/test_policy.py"""
MOSTLY_CPU_SHARE = 0.5
"""Share of a stage. CPU time then gives its length. tests/harness/explain/test_policy.py"""
RECEIVED_SHARE = 0.75
"""Share of a hand-over that a ready batch costs, if not recorded. tests/harness/explain/test_policy.py"""
HANDOVER_TIMES_MAX = 3
"""Multiple of an assumed hand-over that intervals include. tests/harness/explain/test_policy.py"""
READY_HANDOVERS = 2.0
"""Hand-overs before its fetch. A batch that ended earlier lay ready. tests/harness/explain/test_policy.py"""
HANDOVERS_SEEN_MIN = 3
"""Observations. Fewer do not show a typical value. tests/harness/explain/test_policy.py"""
TAPE_ROUNDS_MIN = 4
"""Rounds of all workers. Fewer say too little of each. tests/harness/explain/test_policy.py"""
TAPE_KEPT_MIN = 0.9
"""Share of the steps. A period that leaves out more is too long. tests/harness/explain/test_policy.py"""

# Replay: predictions

REPLAY_ERROR_MAX = 0.05
"""Share of a step. A replay that is further off predicts nothing. tests/harness/explain/test_policy.py"""
AHEAD_STEPS = 4
"""Unmeasured steps in which a replay's host gets ahead. tests/harness/explain/replay/test_predict.py"""
PREDICTED_STEPS_MAX = 500
"""Measured steps of a prediction. Replicates multiply them. tests/harness/explain/test_policy.py"""
PREDICTION_REPLICATES = 16
"""Replicates per run. Their mean moves by less than 1 % with the seed. tests/harness/explain/test_policy.py"""
BATCHES_AHEAD_MAX = 4096
"""Batches in flight. More take minutes and change nothing. tests/harness/explain/replay/test_predict.py"""
REMOVAL_REPLICATES = 4
"""Replicates of a run that is too long to replay whole. tests/harness/explain/test_policy.py"""
REMOVED_SHARE_MIN = 1e-3
"""Share of a step. A shorter phase is not removed. tests/harness/explain/test_policy.py"""
REMOVAL_ERROR_MAX = 0.01
"""Share of a step. A replay further off widens a saving. tests/harness/explain/replay/test_removals.py"""
STEP_LEFT_MIN = 1e-3
"""Share of a step that is left whatever is removed. tests/harness/explain/test_policy.py"""
CROSSING_SHARE = 0.01
"""Share of a step. Below it tokenization does not matter. tests/harness/explain/replay/test_sweep.py"""
