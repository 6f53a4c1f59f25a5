"""Read facts about this machine, for probes and launch, and judge them for ``harness doctor`` (``check_*``).

A function that reads files takes the root of the file system. A missing or unreadable file gives None.
"""
