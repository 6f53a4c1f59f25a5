"""Proves a timeline right by program: what it says of itself, and what the real Perfetto makes of it.

python -m tests.timeline_check TIMELINE [--perfetto DIR]
"""
