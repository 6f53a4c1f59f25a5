"""Runs a study in jobs of Slurm: the batch script, the queue, and what the jobs leave behind."""
