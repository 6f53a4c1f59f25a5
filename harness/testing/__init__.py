PROPERTY = "harness"  # property of a test's report that holds the check's result
