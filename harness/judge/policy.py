"""Define every number of this room that affects a report: value, unit, reason, test. Shares are fractions of 1.

Names end in MIN or MAX for bounds, and in WITHIN if smaller differences count as none.
"""

from __future__ import annotations

# Unseen time of attached programs.
UNSEEN_SHARE_MAX = 0.10
"""Share of the time. Above it, unrecorded time may hide a wait for data. tests/harness/judge/test_policy.py"""
CORE_WAIT_SHARE_MAX = 0.10
"""Share of the time. Above it, times depend on other processes, not the program. tests/harness/judge/test_policy.py"""
RESTART_SHARE_MAX = 0.01
"""Share of the time. Above it, a replay of other loader settings is wrong. tests/harness/judge/test_policy.py"""

# Diagnoses.
ENDED_COST_MIN = 0.9
"""Share of a cost. If a smaller share ended, the rest can still be saved. tests/harness/judge/test_diagnosis.py"""
DIAGNOSED_SHARE_MIN = 0.10
"""Share of a step by the clock. A smaller part does not bound a program. tests/harness/judge/test_diagnosis.py"""
BUSY_CORES_MIN = 0.5
"""Cores. A program whose own threads and processes use fewer is not crowded. tests/harness/judge/test_diagnosis.py"""
NOISY_SHARE_MIN = 0.25
"""Share of a step. Such a cost is reported even if its interval includes 0. tests/harness/judge/test_diagnosis.py"""
FINDING_SHARE_MIN = 0.05
"""Share of a step without waits for a core. A smaller cost is not a finding. tests/harness/judge/test_diagnosis.py"""
HANDOVER_SHARE_MIN = 0.1
"""Share of a step. A smaller hand-over of batches has no remedy. tests/harness/judge/test_diagnosis.py"""
EXCHANGE_SHARE_MIN = 0.5
"""Share of the waits for ranks. If none avoids more, no late rank causes them. tests/harness/judge/test_diagnosis.py"""
COMPUTE_SHARE_MIN = 0.5
"""Share of a step. From here on, forward, backward and optimizer bound it. tests/harness/judge/test_diagnosis.py"""

# Verdicts.
ENOUGH_BLOCKS = 5
"""Blocks to recommend: the least for an interval as narrow as the data allow. tests/harness/judge/test_policy.py"""
BLOCKS_ASKED_MAX = 100
"""Blocks. A larger study is not a practical remedy. tests/harness/judge/test_policy.py"""
CONTROL_APART_MIN = 0.005
"""Share of the speed. An A/A control that certainly differs by more is not equal. tests/harness/judge/test_policy.py"""
COARSE_RESOLUTION = 0.1
"""Share of the speed. A study that cannot detect it never says "no difference". tests/harness/judge/test_verdicts.py"""
USELESS_RATIO = 2.0
"""Speed ratio. An interval that includes it and its inverse shows nothing. tests/harness/judge/test_policy.py"""
USELESS_FLOOR = 1.0
"""Share of the speed. At this noise floor, a program may seem twice as fast. tests/harness/judge/test_policy.py"""

# Figures of a comparison.
SAME_TOKENS_WITHIN = 0.01
"""Share of the tokens in a step. Other batches of equal lengths differ by less. tests/harness/judge/test_policy.py"""
CONTROL_POSITIONS_WITHIN = 0.03
"""Share of the positions in a step by which an ideal-data control may differ. tests/harness/judge/test_policy.py"""
CEILING_INTERVAL_MAX = 1.5
"""Upper / lower end. A control with a wider one does not contradict the replay. tests/harness/judge/test_policy.py"""
CEILINGS_WITHIN = 0.05
"""Share of the speed. Within it, control and replay give one ceiling. tests/harness/judge/test_policy.py"""
WITNESSES_WITHIN = 0.01
"""Share of the speed. Figures of repeated steps agree within this. tests/harness/judge/test_policy.py"""
TOTAL_APART_MIN = 0.01
"""Share of the ratio. Long steps that change it by less change no decision. tests/harness/judge/test_policy.py"""
DRIFT_STEPS_MIN = 16
"""Steps of a run with one repetition. Halves of fewer have no usable mean. tests/harness/judge/test_policy.py"""
DRIFT_MIN = 0.03
"""Share of the speed, first to last repetition. Clocks and caches settle by less. tests/harness/judge/test_policy.py"""
HORIZON_EPOCHS = 2
"""Epochs to recommend if costs change. A cache fills in the first one. tests/harness/judge/test_policy.py"""
HORIZON_TIMES = 4
"""Multiple of the measured steps to recommend if costs change. tests/harness/judge/test_policy.py"""
UNEVEN_APART_MIN = 0.02
"""Share of the step, between mean and median, or between both kinds of blocks. tests/harness/judge/test_policy.py"""
UNEVEN_BLOCKS_MIN = 2
"""Blocks of a kind. A single block that waits for long shows in the mean. tests/harness/judge/test_policy.py"""
UNEVEN_KIND_RATIO = 0.5
"""Times the wait of the other kind. Blocks that wait less are of another kind. tests/harness/judge/test_policy.py"""

# Undeclared differences between arms.
OTHER_CORES_MAX = 0.1
"""Cores. A smaller load by other processes has no measurable effect. tests/harness/judge/test_policy.py"""
USEFUL_TOKENS_WITHIN = 0.01
"""Fraction of the trained share. Different documents change it by less. tests/harness/judge/test_confounds.py"""
BLOCK_STEPS_WITHIN = 0.1
"""Share of the steps in a block. Rounding to repetitions moves them by less. tests/harness/judge/test_policy.py"""
MEMORY_SIZE_WITHIN = 0.05
"""Share of the machine's memory. Each kernel keeps a few pages more or less. tests/harness/judge/test_policy.py"""

# Losses.
LOSS_EXPONENT_MAX = 0.5
"""Exponent of losses in tokens. Published: 0.095 (Kaplan), 0.28 (Hoffmann). tests/harness/judge/test_losses.py"""
LOSSES_WITHIN = 0.01
"""Share of the loss. Rounding in different kernels changes it by less. tests/harness/judge/test_policy.py"""
LOSSES_EXPLAINED_MAX = 0.5
"""Share of the loss. No number of tokens in a step explains more. tests/harness/judge/test_policy.py"""
OTHER_DOCUMENTS_WITHIN = 0.03
"""Share of the loss. Steps of different sizes end at different documents. tests/harness/judge/test_policy.py"""
LOSS_CONFIDENCE = 0.99
"""Level of a difference's interval. 0.95 would bar one comparison in twenty. tests/harness/judge/test_losses.py"""
LOSSES_CLEARLY_APART = 0.1
"""Share of the loss, between medians. Failed trainings scatter so much that their interval includes any value.
tests/harness/judge/test_losses.py"""
LOSSES_BEYOND_CONTROL = 3.0
"""Multiple of the A/A control's largest difference. Beyond it, training differs. tests/harness/judge/test_losses.py"""
BLOCKS_APART_MIN = 2
"""Blocks. A loss may rise in one of them by chance. tests/harness/judge/test_losses.py"""

ROWS_COMPARED_MIN = 32
"""Rows of a run. Among fewer, two equal documents are a large share. tests/harness/judge/test_losses.py"""
REPEATED_ROWS_WITHIN = 0.05
"""Share of the rows. Orders of one corpus meet its duplicates at other times. tests/harness/judge/test_losses.py"""

# Scaling over ranks.
SAME_BATCH_WITHIN = 0.1
"""Share of a global batch's tokens. Other documents change them by less. tests/harness/judge/test_policy.py"""
LOSS_FALL_ERRORS = 4.0
"""Standard errors. A loss that fell by less reached its target by chance. tests/harness/judge/test_scaling.py"""
LOSS_WINDOW_SHARE = 0.1
"""Share of the tokens that one mean loss covers. tests/harness/judge/test_policy.py"""

# Advice.
ADVICE_REPLICATES = 8
"""Replays of each run: half as many as of a prediction that a user asks for. tests/harness/judge/test_policy.py"""
ADVISED_WORKERS = (2, 4)
"""Numbers of loader workers to replay: one core or two beside the trainer. tests/harness/judge/test_advice.py"""
WORKER_MULTIPLES = (2, 4)
"""Times the present number of workers, where that is 4 or more. tests/harness/judge/test_advice.py"""
ADVISED_GAIN_MIN = 0.01
"""Share of the speed. Replay cannot distinguish a smaller gain from no change. tests/harness/judge/test_policy.py"""
AS_GOOD_WITHIN = 0.01
"""Share of the speed. Within it, the smaller setting is recommended. tests/harness/judge/test_policy.py"""

# Predicted costs.
COSTED_STEPS = 20
"""Steps that are measured of each arm: step 0, and enough for an interval. tests/harness/judge/test_policy.py"""
WORST_OF_STEPS = 10
"""Number of last steps whose slowest is the worst case, after warm-up. tests/harness/judge/test_cost.py"""
COSTED_LONG_RATIO = 1.5
"""Times the median step. Longer steps before the first usual one are start. tests/harness/judge/test_cost.py"""
STEPS_AFTER_CHECKPOINT = 5
"""Steps that show the cost of a concurrent checkpoint write. tests/harness/judge/test_policy.py"""

# The host.
READINGS_MISSED_MAX = 0.01
"""Share of the readings of a sampler. Fewer do not move a mean. tests/harness/judge/test_policy.py"""
QUOTA_THROTTLED_MIN = 0.01
"""Share of the quota's periods. tests/harness/judge/test_policy.py"""
CORE_DELAY_MIN = 0.05
"""Seconds per second in which threads waited for a core. Schedulers cause less. tests/harness/judge/test_policy.py"""
FAULTS_PER_S_MIN = 1.0
"""Major page faults per second. Late reads of start-up code cause fewer. tests/harness/judge/test_policy.py"""
DISK_BYTES_PER_S_MIN = 2**20
"""Bytes per second. Logs and libraries are read at lower rates. tests/harness/judge/test_policy.py"""
DISK_PRESSURE_MIN = 0.05
"""Share of the time that some process waited for the disk. tests/harness/judge/test_policy.py"""
MEMORY_PRESSURE_MIN = 0.01
"""Share of the time that some process waited for memory. tests/harness/judge/test_policy.py"""
MEMORY_LIMIT_NEAR = 0.9
"""Share of the memory limit. The kernel reclaims the page cache from here on. tests/harness/judge/test_policy.py"""
OTHERS_WINDOW_S = 0.5
"""Seconds. The kernel counts in ticks of 10 ms, which are then 2 % of a core. tests/harness/judge/test_policy.py"""
UNCOUNTED_CPU_MAX = 0.1
"""Share of the run's CPU time. Above it the kernel missed processes. tests/harness/judge/test_policy.py"""

# GPUs.
GPU_THROTTLED_MIN = 0.01
"""Share of the samples. tests/harness/judge/test_policy.py"""
CLOCK_FALL_MIN = 0.03
"""Share of the clock. A governor moves it by less. tests/harness/explain/probes/test_device_health.py"""
CLOCK_PARTS = 4
"""Parts of a run whose median clocks are compared. tests/harness/explain/probes/test_device_health.py"""
SM_CLOCKS_WITHIN = 0.01
"""Share of the mean clock, between two arms or two studies. tests/harness/judge/test_policy.py"""
THROTTLED_APART_MAX = 0.05
"""Share of the samples, between two arms. tests/harness/judge/test_policy.py"""
GPU_SAMPLES_MIN = 3
"""Samples of a card. Fewer are no mean. tests/harness/judge/test_policy.py"""
PROFILED_STEP_RATIO_MAX = 1.1
"""Times the typical step. Longer profiled kernels are of another step. tests/harness/judge/test_policy.py"""
COLUMNS_SHARE = 0.5
"""Share of the padding. If columns of padding have more, a shorter batch helps. tests/harness/show/test_policy.py"""
