"""Defines the numbers that decide what analysis counts, bounds or leaves out. Other modules import them from here."""

from __future__ import annotations

# Blocks and intervals

CONFIDENCE = 0.95
"""Probability. Level of each interval whose caller sets no other level. tests/harness/explain/test_statistics.py"""
MIN_BLOCKS = 3
"""Blocks. Fewer values give no interval: two do not show their spread. tests/harness/explain/test_statistics.py"""
INDEPENDENT_BLOCKS = 0.7
"""Probability. Prior that blocks are independent. tests/harness/explain/test_statistics.py"""
INDEPENDENT_BLOCKS_ALONE = 0.4
"""Probability. The same prior without an A/A control, whose blocks would show correlation.
tests/harness/judge/test_comparisons.py"""

# Steps that are unlike the others

LONG_STEP_FACTOR = 3.0
"""Multiple of a typical step. A longer step is a long step. tests/harness/explain/test_long_steps.py"""
LONG_STEPS_SHARE_MAX = 0.25
"""Share of the steps. If more are long, long steps are not rare. tests/harness/explain/test_policy.py"""
KINDS_STEPS_MIN = 80
"""Steps. With fewer, the gap between two kinds may be empty by chance. tests/harness/explain/test_step_kinds.py"""
KINDS_STEPS_DRAWN = 100_000
"""Steps. A longer record is sampled down to this: shares are off by 0.3 %. tests/harness/explain/test_policy.py"""
KIND_SHARE_MIN = 0.15
"""Share of the steps. A rarer kind counts as long steps. tests/harness/explain/test_step_kinds.py"""
KINDS_RATIO_MIN = 1.25
"""Slow / fast. With a smaller ratio, both are one kind. tests/harness/explain/test_step_kinds.py"""
KINDS_BETWEEN_MAX = 0.05
"""Share of the steps midway between two kinds. With more, both are one. tests/harness/explain/test_step_kinds.py"""
KIND_RUNS_SPREAD = 0.07
"""Share of the distance between kinds. Runs of one kind differ by at most this. tests/harness/explain/test_policy.py"""
KIND_RUNS_MIN = 2
"""Runs. Minimum of each kind, if each run has one kind. tests/harness/explain/test_step_kinds.py"""
NEAR_MEAN_SHARE = 0.1
"""Share of the mean. A step is near the mean if it differs by at most this. tests/harness/explain/test_step_kinds.py"""
OUTLIER_QUARTILES = 3.0
"""Interquartile ranges above the upper quartile (Tukey's far-out values). tests/harness/explain/test_step_times.py"""
STEP_OUTLIERS_MAX = 200
"""Outliers. The plot shows at most this many of a run, the slowest. tests/harness/explain/test_step_times.py"""
STEP_POINTS_MAX = 6_000
"""Steps of a study that the plot shows at most: larger pages open slowly. tests/harness/explain/test_step_times.py"""

# Steps that get longer

TREND_STEPS_MIN = 40
"""Measured steps. Fewer do not distinguish a trend from a warm-up. tests/harness/explain/test_trend.py"""
TREND_BINS = 20
"""Parts of a run. The median of each part removes single long steps. tests/harness/explain/test_trend.py"""
TREND_RATIO_MIN = 1.2
"""Last / first. Clock changes and other processes cause less growth. tests/harness/explain/test_trend.py"""
TREND_QUARTER_MIN = 0.15
"""Share of an even rise. If a quarter of the run rises less, it was a warm-up. tests/harness/explain/test_trend.py"""
TREND_ALIKE_MIN = 0.75
"""Smallest / largest rise of the parts. If all rise alike, the machine slowed. tests/harness/explain/test_trend.py"""
TREND_PART_MIN = 0.1
"""Share of a step. A shorter part is not compared with the others. tests/harness/explain/test_trend.py"""
TREND_BEFORE_MAX = 0.25
"""Share of the measured steps. Growth is extrapolated to as many earlier steps. tests/harness/explain/test_trend.py"""
TREND_WORK_MAX = 0.5
"""Share of the rise. If batches grow by more, the larger batches explain it. tests/harness/explain/test_trend.py"""

# Losses

LOSS_STEPS = 10
"""Steps. Losses are compared by their mean over this number of last steps. tests/harness/explain/test_policy.py"""
DIVERGED_TIMES = 2.0
"""Last loss / first loss. A run above it, and above DIVERGED_BY, diverged. tests/harness/explain/test_policy.py"""
DIVERGED_BY = 1.0
"""Nats. Minimum rise of a loss that diverged: small ones may double by chance. tests/harness/explain/test_policy.py"""

# Limits of a step

LIMIT_SHARE_MIN = 0.05
"""Share of a step. Less idle time, or less room, limits nothing. tests/harness/explain/test_policy.py"""
LOADERS_BUSY_SHARE = 0.9
"""Share of the workers' time. If they work more, they limit a step that waits. tests/harness/explain/test_policy.py"""
ROOM_FELT_SHARE = 0.1
"""Share of the time added to fetches. A step that grows by more has no room. tests/harness/explain/test_room.py"""
ROOM_STEPS_MAX = 1_000
"""Measured steps at each end of a run. Each trial replays all of them. tests/harness/explain/test_policy.py"""
ROOM_QUEUED_MAX = 5_000
"""Pieces of device work. Maximum queued before the first step. tests/harness/explain/test_policy.py"""
ROOM_TRIES = 12
"""Trials. They determine the room to 1/4096 of a step. tests/harness/explain/test_room.py"""
HELD_STEPS_MIN = 10
"""Steps. Fewer do not distinguish a full queue from one that fills. tests/harness/explain/test_room.py"""
HELD_IDLE_NS_MAX = 100_000
"""Nanoseconds per step. A device with a full queue idles no longer. tests/harness/explain/test_room.py"""
HELD_BLOCKED_SHARE = 0.005
"""Share of a step. Shorter blocking calls do not explain the device's lag. tests/harness/explain/test_room.py"""

# Device work

LAUNCH_TAIL_NS = 100_000
"""Nanoseconds. A device that waits for launches ends by then. tests/harness/explain/test_launch_bound.py"""
LAUNCH_TAIL_SHARE = 0.02
"""Share of a bracket, if above LAUNCH_TAIL_NS: the last of 50 kernels. tests/harness/explain/test_launch_bound.py"""
SHORT_LAUNCHES_SHARE = 0.05
"""Share of device time. If launches below the tail sum to more, they count. tests/harness/attach/test_closing.py"""
FULL_QUEUE_NS = 1_000_000
"""Nanoseconds. Least work of a full queue: 1,024 launches, each kernel 1 us. tests/harness/explain/test_room.py"""
OPEN_DEVICE_SHARE = 0.01
"""Share of a step. Less open time counts as busy. tests/harness/explain/test_launch_bound.py"""
FILLED_PIECE_SHARE = 0.95
"""Share of a bracket. Kernels that take more count as all of it. tests/harness/explain/test_profiled_window.py"""
SELDOM_WORK_SHARE = 0.05
"""Share of the pieces of one name. If fewer are open, they are ignored. tests/harness/explain/test_launch_bound.py"""
CLOCK_TOLERANCE_NS = 200_000
"""Nanoseconds. A call did not wait for work that ended so long after. tests/harness/explain/replay/test_recording.py"""

# Loader workers

WORKER_ROUNDS_MIN = 2
"""Batches per worker. A worker that made none of this many has no items. tests/harness/explain/replay/test_makers.py"""
UNEQUAL_WORKER_FACTOR = 1.5
"""Multiple of an equal share. A worker above it made others' batches. tests/harness/explain/replay/test_makers.py"""
SLOW_WORKER_FACTOR = 1.25
"""Multiple of the median time of the fastest worker, and of the others. A slow worker is above both.
tests/harness/explain/replay/test_makers.py"""
SLOW_WORKER_BATCHES_MIN = 20
"""Batches of a worker. Fewer could all be slow by chance. tests/harness/explain/replay/test_makers.py"""
LONG_READ_FACTOR = 10.0
"""Multiple of the median read. A longer read loads data for later reads. tests/harness/explain/test_loading.py"""
LONG_READS_MIN = 4
"""Long reads. Fewer do not show an interval. tests/harness/explain/test_loading.py"""
LONG_READS_SHARE_MAX = 0.2
"""Share of the reads. If more are long, long reads are not rare. tests/harness/explain/test_loading.py"""
LONG_READS_SPREAD_MAX = 0.25
"""Interquartile range / median of gaps between long reads. By chance about 1. tests/harness/explain/test_loading.py"""
LONG_READS_TIME_MIN = 0.5
"""Share of the time of all reads. Long reads that take less are not the cause. tests/harness/explain/test_loading.py"""
WORKER_HELD_SHARE = 0.1
"""Share of the time to make a batch. A shorter gap is the worker's own. tests/harness/explain/test_lead.py"""
FIRST_FETCH_MS_MIN = 2000.0
"""Milliseconds. Loader workers start faster, even on a busy machine. tests/harness/attach/test_program_causes.py"""
CHEAP_ROW_US_MAX = 20.0
"""Microseconds of CPU time. Fetching a row takes 5 to 15; more is own work. tests/harness/judge/test_diagnosis.py"""
LEAD_BATCHES_MIN = 6
"""Batches. Fewer are too few for a mean, because batches differ. tests/harness/explain/test_lead.py"""
LEAD_SHARE_MIN = 0.01
"""Share of a step. Lead is reported if steps use up more. tests/harness/explain/test_policy.py"""
EXPOSED_ABOVE_WORK_MAX = 0.01
"""Share of the time. Exposed stages may exceed their work by at most this. tests/harness/explain/test_policy.py"""

# Memory of a long run

KEPT_SPANS_MAX = 1_000_000
"""Spans. Maximum of a run kept in memory, about 30 MB. tests/harness/explain/test_policy.py"""
KEPT_MAKERS_MAX = 2**20
"""Batches. Maximum whose makers are kept; a replay needs fewer. tests/harness/explain/test_policy.py"""
WORKER_NUMBER_MAX = 10_000
"""Worker number. A larger one in a role means a damaged record. tests/harness/explain/test_policy.py"""

# Doses

HIDDEN_SLOPE_MAX = 0.2
"""ms per ms. Work is hidden if the slope's interval is below. tests/harness/explain/test_dose.py"""
EXPOSED_SLOPE_MIN = 0.8
"""ms per ms. Work is exposed if the slope's interval is above. tests/harness/explain/test_dose.py"""
PARTIAL_SLOPE_MARGIN = 0.1
"""ms per ms. Minimum distance of a partial slope's interval from 0 and 1. tests/harness/explain/test_dose.py"""
KINK_BEND_MIN = 0.2
"""ms per ms. The curve bends up if its last slope exceeds its first by more. tests/harness/explain/test_dose.py"""
DOSE_ADDED_MIN = 0.05
"""Share of the work. If the largest dose adds less, no curve is fitted. tests/harness/explain/test_dose.py"""
DOSE_BLOCKS_MAX = 1_000
"""Blocks. Larger studies are not recommended. tests/harness/explain/test_dose.py"""

# Ranks

STRAGGLER_BLOCKS_SHARE = 0.8
"""Share of the blocks. Minimum that must show the same rank and part. tests/harness/explain/test_stragglers.py"""
STRAGGLER_ERRORS_MIN = 3.0
"""Standard errors. A smaller excess is scatter. tests/harness/explain/test_stragglers.py"""
RANK_STEPS_UNLIKE = 0.03
"""Share of a step. Ranks whose steps differ by more do not wait for one another. tests/harness/explain/test_ranks.py"""

# Costs that ended

ENDED_SHARE_MAX = 0.1
"""Share of a step's former cost. If more remains, the cost has not ended. tests/harness/explain/test_ended.py"""
ENDED_STEPS_SHARE_MIN = 0.25
"""Share of the steps. A cost that was absent for fewer may come again. tests/harness/explain/test_ended.py"""
ENDED_GAPS_MIN = 3
"""Multiple of the longest gap between steps with a cost until it has ended. tests/harness/explain/test_ended.py"""

# Causes and stacks

NAMED_LINE_SHARE_MIN = 0.02
"""Share of a step. Shorter lines of own code count as "other". tests/harness/explain/test_wall.py"""
STAGE_LINE_SHARE_MIN = 0.5
"""Share of the fetch. A line that takes more names the longest stage. tests/harness/explain/test_wall.py"""
NAMED_LINES_MAX = 4
"""Lines of own code. At most this many, the longest, are parts of a step. tests/harness/explain/test_wall.py"""
EVALUATED_SHARE_MIN = 0.3
"""Share of the evaluations. If no line takes this much, they have no place. tests/harness/explain/test_wall.py"""
HELD_LOOKS_SHARE = 0.5
"""Share of the looks at a held lock that wait for more than half of the switch interval, while the recorded thread
waits as well: the holder gives the lock up at a time that does not depend on the look.
tests/harness/attach/test_steps.py"""
HELD_SHARE_MIN = 0.3
"""Share of a thread's time in which looks find the lock held. A smaller share counts as 0: on a busy core, a thread may
be preempted while it briefly holds the lock. tests/harness/attach/test_steps.py"""
HOOKS_ADDED_MIN = 3
"""Hooks. Libraries add one or two once; more are added repeatedly. tests/harness/attach/test_program_causes.py"""
LOOKS_MIN = 2
"""Readings of a setting. A single one does not show that it stays on. tests/harness/attach/test_program_causes.py"""
SYNCED_PASSES_MIN = 1.5
"""Backward passes per step that synchronize. Accumulation needs one. tests/harness/attach/test_program_causes.py"""
MEMORY_READINGS_MIN = 5
"""Steps with a reading, without the first third. Fewer show no trend. tests/harness/attach/test_program_causes.py"""
EVEN_GROWTH_MIN = 0.25
"""Share of the growth in each half. Less means a single rise. tests/harness/attach/test_program_causes.py"""
GROWN_BYTES_MIN = 16e6
"""Bytes. Allocators keep about this much, so less growth is normal. tests/harness/attach/test_program_causes.py"""
MEMORY_FULL_S = 24 * 3600.0
"""Seconds until memory is full. Slower growth is not reported. tests/harness/attach/test_program_causes.py"""
GC_CAUSE_RATIO = 2.0
"""Collections / own time at a place. From this on, the place only collects. tests/harness/explain/test_policy.py"""
ROUGH_PLACE_SHARE = 1 / 3
"""Share of the samples near a boundary. With more, shares are rough. tests/harness/explain/probes/test_stacks.py"""
KEPT_STACKS = 5
"""Functions and stacks. Maximum kept for each place. tests/harness/explain/probes/test_stacks.py"""

# Replay: records

SUSPENDED_NS_MIN = 20_000_000
"""Nanoseconds. A longer gap before warm-up means a suspended run. tests/harness/explain/replay/test_recording.py"""
REPLAYED_STEPS_MAX = 5_000
"""Measured steps. More add little precision, but take hours. tests/harness/explain/replay/test_recording.py"""
HELD_WORK_SHARE = 0.5
"""Share of the host's work in a step. Less extra time is scatter. tests/harness/explain/test_policy.py"""
MOSTLY_CPU_SHARE = 0.5
"""Share of CPU time in a stage. Above it, CPU time gives the stage's length. tests/harness/explain/test_policy.py"""
RECEIVED_SHARE = 0.75
"""Share of a hand-over: assumed cost of receiving a batch, if not recorded. tests/harness/explain/test_policy.py"""
HANDOVER_TIMES_MAX = 3
"""Multiple of an assumed hand-over. Intervals include up to this. tests/harness/explain/test_policy.py"""
READY_HANDOVERS = 2.0
"""Hand-overs. A batch that ended earlier than this before its fetch was ready. tests/harness/explain/test_policy.py"""
HANDOVERS_SEEN_MIN = 3
"""Observations. Fewer do not show a typical value. tests/harness/explain/test_policy.py"""
TAPE_ROUNDS_MIN = 4
"""Rounds of all workers. Fewer are too few to represent each worker. tests/harness/explain/test_policy.py"""
TAPE_KEPT_MIN = 0.9
"""Share of the steps. A period that keeps fewer is too long. tests/harness/explain/test_policy.py"""

# Long trainings

SPANS_MAX = 12
"""Rows of the table over time. More do not fit on a screen. tests/harness/explain/test_history.py"""

# Replay: predictions

REPLAY_ERROR_MAX = 0.05
"""Share of a step. A replay with a larger error is not used. tests/harness/explain/test_policy.py"""
AHEAD_STEPS = 4
"""Unmeasured steps, in which a replay's host gets ahead of its device. tests/harness/explain/replay/test_predict.py"""
PREDICTED_STEPS_MAX = 500
"""Measured steps of a prediction. Each replicate replays all of them. tests/harness/explain/test_policy.py"""
PREDICTION_REPLICATES = 16
"""Replicates per run. Their mean changes by less than 1 % with the seed. tests/harness/explain/test_policy.py"""
BATCHES_AHEAD_MAX = 4096
"""Batches in flight. More would take minutes and change nothing. tests/harness/explain/replay/test_predict.py"""
REMOVAL_REPLICATES = 4
"""Replicates of a run that is too long for a full replay. tests/harness/explain/test_policy.py"""
REMOVED_SHARE_MIN = 1e-3
"""Share of a step. The removal of a shorter phase is not replayed. tests/harness/explain/test_policy.py"""
REMOVAL_ERROR_MAX = 0.01
"""Share of a step. A larger replay error widens a saving's interval. tests/harness/explain/replay/test_removals.py"""
STEP_LEFT_MIN = 1e-3
"""Share of a step. Minimum that remains, whatever is removed. tests/harness/explain/test_policy.py"""
CROSSING_SHARE = 0.01
"""Share of a step. If tokenization costs less, it does not matter. tests/harness/explain/replay/test_sweep.py"""
