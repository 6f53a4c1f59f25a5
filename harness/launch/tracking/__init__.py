"""Hands what a study measured to experiment trackers, each in a process of its own that may fail or hang."""
