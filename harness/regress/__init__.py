BASELINES = "results/baselines"  # folder of kept figures, relative to the working directory
