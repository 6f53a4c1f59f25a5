"""Traces in exactly the layout of torch 2.13's writer (kineto), from events with times in nanoseconds."""

from __future__ import annotations

import json
from collections.abc import Iterable


def microseconds(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def _event(lines: list[str], args: dict[str, object]) -> str:
    body = ",\n".join(f"    {line}" for line in lines)
    told = ",".join(f'"{key}": {json.dumps(value)}' for key, value in args.items())
    arguments = f'\n    ,\n    "args": {{\n      {told}\n    }}' if args else "\n    "
    return f"\n  {{\n{body}{arguments}\n  }},"


def complete(
    name: str, start_ns: int, duration_ns: int, category: str = "cpu_op", pid: int = 1, tid: int = 1, **args: object
) -> str:
    """A complete event; ``args`` with ``_`` for spaces, as External_id."""
    what = ['"ph": "X"', f'"cat": "{category}"', f'"name": "{name}"', f'"pid": {pid}', f'"tid": {tid}']
    times = [f'"ts": {microseconds(start_ns)}', f'"dur": {microseconds(duration_ns)}']
    return _event(what + times, {key.replace("_", " "): value for key, value in args.items()})


def memory(at_ns: int, size: int, total: int, device: tuple[int, int] = (0, -1), pid: int = 1, tid: int = 1) -> str:
    """An allocation (release: ``size`` negative) after which ``total`` bytes are allocated on ``device`` (type, id)."""
    what = ['"ph": "i"', '"cat": "cpu_instant_event"', '"s": "t"', '"name": "[memory]"', f'"pid": {pid}']
    told: dict[str, object] = {"Total Reserved": 0, "Total Allocated": total, "Bytes": size, "Device Id": device[1]}
    told |= {"Device Type": device[0], "Addr": 140499665076224, "finished": False, "Ev Idx": 7}
    return _event([*what, f'"tid": {tid}', f'"ts": {microseconds(at_ns)}'], told)


def flow(kind: str, number: int, at_ns: int, pid: int = 1, tid: int = 1) -> str:
    """Start (s) or end (f) of an arrow from a launch to its kernel."""
    what = [f'"ph": "{kind}"', f'"id": {number}', f'"pid": {pid}', f'"tid": {tid}', f'"ts": {microseconds(at_ns)}']
    return _event([*what, '"cat": "ac2g"', '"name": "ac2g"', *['"bp": "e"'] * (kind == "f")], {})


def header(base_ns: int = 0, **metadata: object) -> str:
    own = "".join(f'\n      "{key}": {json.dumps(value)},' for key, value in metadata.items())
    process = ['"ph": "M"', '"name": "process_name"', '"ts": 0.000', '"pid": 1', '"tid": 0']
    return (
        f' {{\n    "schemaVersion": 1,\n    "deviceProperties": [],\n    {own}\n    "displayTimeUnit": "ms",\n'
        f'    "baseTimeNanoseconds": {base_ns},\n    "traceEvents": [\n    {_event(process, {"name": "python"})}'
    )


_SPAN = ['"ph": "X"', '"cat": "Trace"', '"name": "PyTorch Profiler (0)"', '"pid": "Spans"', '"tid": "PyTorch Profiler"']
_END = ['"ph": "i"', '"s": "g"', '"name": "Record Window End"', '"pid": ""', '"tid": ""', '"ts": 9.001']
FOOTER = (
    _event([*_SPAN, '"ts": 1.000', '"dur": 2.000'], {"Op count": 0})
    + _event(_END, {}).removesuffix(",")
    + '\n  ],"traceName": "torch_profile.json" }'
)


def trace(events: Iterable[str], base_ns: int = 0, **metadata: object) -> bytes:
    """The whole file."""
    return (header(base_ns, **metadata) + "".join(events) + FOOTER).encode()
