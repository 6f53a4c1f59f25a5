LEAST_WARMUP = 4  # steps: two early ones are watched, and the two before them build much
