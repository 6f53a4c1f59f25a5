PROPERTY = "harness"  # of a test's report: what its check found
