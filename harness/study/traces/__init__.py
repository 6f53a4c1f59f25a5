"""Reads the files that profilers leave in a run's folder: bytes in, Arrow tables out."""
