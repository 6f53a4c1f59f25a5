"""Read facts about this machine, judged by ``harness doctor`` (``checks``) and read by probes and launch.

A function that reads files takes the root of the file system. A missing or unreadable file gives None.
"""
