"""Runs a study in Slurm jobs: the batch script, the queue, and the results of the jobs."""
