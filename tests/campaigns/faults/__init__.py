"""Campaigns that damage what the harness reads, and count what it does about it; run by hand."""
