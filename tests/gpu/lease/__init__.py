"""Runs measurements on a lent card: see tests/gpu/README.md."""
