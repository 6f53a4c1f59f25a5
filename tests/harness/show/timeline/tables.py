"""Small tables as the probes' readers give them."""

from __future__ import annotations

import pyarrow as pa

from harness.study.contract import SAMPLE_COLUMNS, arrow_schema
from harness.study.traces.kineto import table_schema


def operators(*rows):
    """(category, name, tid, start_ns, duration_ns, role, {other columns})."""
    names = ("category", "name", "tid", "start_ns", "duration_ns", "role")
    filled = [{**dict(zip(names, row, strict=False)), "pid": 1, **(row[6] if len(row) > 6 else {})} for row in rows]
    return pa.table(
        {field.name: pa.array([row.get(field.name) for row in filled], field.type) for field in table_schema()}
    )


def stacks(*rows):
    """(time_ns, duration_ns, pid, tid, role, stack)."""
    names = ("time_ns", "duration_ns", "pid", "tid", "role", "stack")
    kinds = [pa.int64()] * 4 + [pa.string(), pa.list_(pa.string())]
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    return pa.table(columns, schema=pa.schema(list(zip(names, kinds, strict=True))))


def samples(*rows):
    """(t_ns, source, metric, value, unit)."""
    columns = {name: [row[place] for row in rows] for place, (name, _) in enumerate(SAMPLE_COLUMNS)}
    return pa.table(columns, schema=arrow_schema(SAMPLE_COLUMNS))
