"""How often verdicts, intervals and baseline checks are wrong, by simulation with the harness's own functions."""
