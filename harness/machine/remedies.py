"""Names the commands that lift a limit of this machine: the same in ``harness doctor`` and where a run fails of one."""

MORE_SHARED_MEMORY = (
    "docker run --shm-size=8g (Kubernetes: emptyDir, medium Memory); sudo mount -o remount,size=8g /dev/shm; "
    "or fewer data.workers, data.prefetch"
)
MORE_OPEN_FILES = "ulimit -n 4096 (docker run --ulimit nofile=4096, or nofile in /etc/security/limits.conf)"
MORE_PROCESSES = "ulimit -u, docker run --pids-limit, or pids.max of the control group: raise it; or fewer data.workers"
MORE_MEMORY = "more memory, or less of it: --interleave runs, fewer data.workers, a smaller model"
