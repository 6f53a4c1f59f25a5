"""Runs a program that may trace nobody, as in a container whose seccomp profile forbids it: see test_py_spy.py.

python without_ptrace.py PROGRAM [ARGUMENT ...] exits with 1 where the kernel takes no such filter.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2  # linux/prctl.h, linux/seccomp.h
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h: of words, compared with a constant
ALLOW, FAIL_WITH_EPERM = 0x7FFF0000, 0x00050001
PTRACE = {"x86_64": 101, "aarch64": 117}


class Filter(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]


def forbid(system_call: int) -> bool:
    """From here on, for this process and all that it starts."""
    steps = [
        (LOAD, 0, 0, 0),  # the system call's number
        (JUMP_IF_EQUAL, 0, 1, system_call),
        (RETURN, 0, 0, FAIL_WITH_EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    program = b"".join(struct.pack("HBBI", *step) for step in steps)
    kept = ctypes.create_string_buffer(program, len(program))
    libc = ctypes.CDLL(None, use_errno=True)
    whole = Filter(len(steps), ctypes.addressof(kept))
    done = (
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(whole)),
    )
    return done == (0, 0)


if __name__ == "__main__":
    if platform.machine() not in PTRACE or not forbid(PTRACE[platform.machine()]):
        sys.exit(1)
    os.execvp(sys.argv[1], sys.argv[1:])
