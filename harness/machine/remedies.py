"""Commands that raise a limit of this machine, for ``harness doctor`` and for runs that fail because of a limit."""

MORE_SHARED_MEMORY = (
    "docker run --shm-size=8g (Kubernetes: emptyDir, medium Memory); sudo mount -o remount,size=8g /dev/shm; "
    "or fewer data.workers, data.prefetch"
)
MORE_OPEN_FILES = "ulimit -n 4096 (docker run --ulimit nofile=4096, or nofile in /etc/security/limits.conf)"
MORE_PROCESSES = "ulimit -u, docker run --pids-limit, or pids.max of the control group: raise it; or fewer data.workers"
MORE_MEMORY = "more memory, or less of it: --interleave runs, fewer data.workers, a smaller model"

REMEDIES = {
    "shared memory": MORE_SHARED_MEMORY,
    "open files": MORE_OPEN_FILES,
    "processes": MORE_PROCESSES,
    "memory": MORE_MEMORY,
}
# Messages of torch and Python in a log or an error after such a limit was reached.
_SIGNS = {
    "shared memory": ("unable to allocate shared memory", "bus error", "out of shared memory"),
    "open files": ("too many open files", "received 0 items of ancdata", "unable to open shared memory"),
    "processes": ("can't start new thread", "resource temporarily unavailable", "pthread_create failed"),
    "memory": ("cannot allocate memory", "memoryerror", "can't allocate memory", "killed by signal: killed"),
}


def cause_in(text: str) -> str | None:
    """Return the key of REMEDIES for the exhausted limit that ``text`` (a log or an error) names.

    None if it names none.
    """
    return next((cause for cause, signs in _SIGNS.items() if any(sign in text.lower() for sign in signs)), None)
