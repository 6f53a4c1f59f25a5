"""Measure the CPU time of the other threads of this process: a library may do its work in its own threads.

SentencePiece does so for each list of texts, even when set to one thread; so does ``data.tokenize: threads``. The
calling thread waits meanwhile. Its own CPU time alone would make the stage look like one that waits for a disk.
"""

from time import process_time_ns, thread_time_ns

STAGES = frozenset({"tokenize"})  # stages that may use other threads, while nothing else in this process runs


def cpu_ns() -> int:
    """Return the CPU time in ns of all threads of this process except the calling one, since the process began."""
    return process_time_ns() - thread_time_ns()


def since_ns(begun_ns: int) -> int:
    """Return by how many ns :func:`cpu_ns` has grown since it returned ``begun_ns``.

    At least 0, because the clocks of process and thread are not read at the same moment.
    """
    return max(0, cpu_ns() - begun_ns)
