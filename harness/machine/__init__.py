"""What this machine is and allows: facts from /proc, /sys and the libraries, as dataclasses.

A shared room: ``harness doctor`` judges these facts (``checks``), probes and launch may read them. Every reader of
files takes the root of the file system, so that a test gives a tree of its own; what is missing or unreadable there
is None, never an error.
"""
