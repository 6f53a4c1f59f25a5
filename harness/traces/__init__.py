"""Readers of the files that profilers leave in a run's folder: pure parsing, bytes in, Arrow tables out."""
