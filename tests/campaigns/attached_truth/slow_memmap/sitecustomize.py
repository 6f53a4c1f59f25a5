"""Makes ``numpy.memmap`` slower, by which nanoGPT's train.py, unmodified, reads its data. See slow_data.py."""

import os
import time

if os.environ.get("SLOW"):
    import numpy

    _mapped = numpy.memmap
    _wanted_s = float(os.environ["SLOW"].partition("=")[2]) / 1e3

    def _memmap(*given, **named):
        begun_ns = time.monotonic_ns()
        time.sleep(_wanted_s)
        took_ns = time.monotonic_ns() - begun_ns
        log = os.open(os.environ["SLOW_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.write(log, f"read {took_ns} {os.getpid()}\n".encode())
        os.close(log)
        return _mapped(*given, **named)

    numpy.memmap = _memmap
