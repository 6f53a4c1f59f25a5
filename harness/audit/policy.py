"""Numbers that decide what an audit finds and states. Each has its unit, its reason and the test that guards it."""

# Scatter of the figures of one row
USUAL_SCATTER = 0.05
"""Relative standard deviation of the honest figures of one row, at most. tests/harness/audit/test_audit_scatter.py"""
INCONSISTENT_CHANCE = 0.005
"""Chance under honest scatter. A row that is less likely is inconsistent. tests/harness/audit/test_audit_scatter.py"""
WITNESS_ROWS_MIN = 3
"""Rows. Fewer other rows cannot overrule USUAL_SCATTER. tests/harness/audit/test_audit_scatter.py"""
COMMON_FACTOR_SPREAD = 0.2
"""Share of the discrepancy. Rows that differ by less have it in common. tests/harness/audit/test_policy.py"""
AVERAGE_WITHIN = 0.05
"""Share of tokens/s. Averages over other steps differ by less. tests/harness/audit/test_policy.py"""

# Readings that explain a row
FIRM_CHANCE = 0.005
"""Chance that an honest row is explained for certain where its figures only scatter. One factor common to all rows of a
table with two decimals can double it (results/reference/audit-rates). tests/harness/audit/test_audit_scatter.py"""
SPECIFIC_SHARE = 0.05
"""Share of figures as far off. If others fit more, a reading is not firm. tests/harness/audit/test_audit_scatter.py"""
OFFERED_SHARE = 0.5
"""Share of figures as far off. A reading that fits more is not offered. tests/harness/audit/test_audit_scatter.py"""
UNEXPLAINED_SHARE = 0.05
"""Share of a row's discrepancy that another row's reading may leave. tests/harness/audit/test_policy.py"""
NORMAL_DEVIATIONS = 2.6
"""Standard deviations: 99 % of normal scatter. tests/harness/audit/test_policy.py"""
ODD_FIXED_RATIO = 0.8
"""Ratio of fixed parts of a step. Below it kinds of devices do not run the same optimizer.
tests/harness/audit/test_policy.py"""

# Values that are tried
LENGTH_STEP = 64
"""Tokens. A plausible sequence length is a power of two or a multiple of this. tests/harness/audit/test_policy.py"""
SEQUENCE_SHORTEST = 16
"""Tokens. No shorter sequence is tried. tests/harness/audit/test_policy.py"""
SEQUENCE_LONGEST = 2**20
"""Tokens. No longer sequence is tried. tests/harness/audit/test_policy.py"""
DEVICES_TRIED_MAX = 4096
"""Devices. No larger number is tried. tests/harness/audit/test_policy.py"""
VALUES_TRIED_MAX = 1000
"""Values. If the digits leave more open, these are tried. tests/harness/audit/test_policy.py"""
AS_FAR_OFF_RATIO = 2.0
"""Times the distance of the printed figure. Figures up to here count as far off. tests/harness/audit/test_policy.py"""

# Limits of tables and lists
TABLE_ROWS_MAX = 1000
"""Rows of a table. More are refused. tests/harness/audit/test_policy.py"""
ROWS_NAMED = 3
"""Rows that the first line names; others are counted. tests/harness/audit/test_policy.py"""
READINGS_NAMED = 2
"""Readings that the first line names; others are counted. tests/harness/audit/test_policy.py"""
COARSE_DIGITS = 0.01
"""Relative. A ratio that its digits leave open by more is given as a range. tests/harness/audit/test_policy.py"""
