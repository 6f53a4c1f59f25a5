"""Sends a study's measurements to experiment trackers, each in its own process, which may fail or hang."""
