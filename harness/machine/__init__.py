"""Read facts about this machine from /proc, /sys and libraries, as dataclasses.

``harness doctor`` judges these facts (``checks``); probes and launch also read them. Every function that reads files
takes the root of the file system, so that a test can pass its own tree. A missing or unreadable file gives None, never
an error.
"""
