"""Self times against a plain simulation: a thread's clock belongs to the innermost open event."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.explain.probes.torch_profile import enclosing, self_times
from tests.examples import examples


def arrays(events):
    table = np.array(events, dtype=np.int64).reshape(-1, 3)
    start, end, thread = table.T.copy()
    return start, end, thread


@st.composite
def nested(draw, begin=0, length=200, depth=0):
    """Events of one thread that nest properly: (start, end), some of them touching, equal or empty."""
    found, at = [], begin
    for _ in range(draw(st.integers(0, 3 if depth < 4 else 0))):
        start = draw(st.integers(at, begin + length))
        end = draw(st.integers(start, begin + length))
        found += [(start, end), *draw(nested(start, end - start, depth + 1))]
        at = end
    return found


threads = st.lists(nested(), min_size=0, max_size=3)


def covered(intervals) -> int:
    """Length of the union."""
    return len({tick for start, end in intervals for tick in range(start, end)})


@examples(50)
@given(threads)
def test_each_tick_belongs_to_the_innermost_event(found) -> None:
    events = [(start, end, thread) for thread, spans in enumerate(found) for start, end in spans]
    own, parents = self_times(*arrays(events))
    expected = [0] * len(events)
    for thread in range(len(found)):
        mine = [at for at, event in enumerate(events) if event[2] == thread]
        for tick in range(201):
            open_now = [at for at in mine if events[at][0] <= tick < events[at][1]]
            if open_now:  # among equal ones the later is the inner one: they were drawn outside in
                expected[max(open_now, key=lambda at: (events[at][0], -events[at][1], at))] += 1
    assert own.tolist() == expected
    for child, parent in enumerate(parents):
        if parent >= 0:
            (start, end, thread), (first, last, of) = events[child], events[parent]
            assert thread == of
            assert first <= start < end <= last


@examples(50)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 2)), max_size=25))
def test_events_that_overlap_are_cut_until_they_nest(drawn) -> None:
    events = [(min(a, b), max(a, b), thread) for a, b, thread in drawn]
    start, end, thread = arrays(events)
    parents, ends = enclosing(start, end, thread)
    own, _ = self_times(start, end, thread)
    assert (own >= 0).all()
    assert (ends <= end).all()
    for number in range(3):
        mine = thread == number
        outermost = mine & (parents < 0)
        assert own[mine].sum() == covered(zip(start[outermost], ends[outermost], strict=True))


def test_an_event_that_outlasts_its_surroundings_ends_with_them() -> None:
    """a 0-10, b 5-15, c 12-14: b is cut to 10, and then nothing is around c."""
    start, end, thread = arrays([(0, 10, 0), (5, 15, 0), (12, 14, 0)])
    parents, ends = enclosing(start, end, thread)
    assert parents.tolist() == [-1, 0, -1]
    assert ends.tolist() == [10, 10, 14]
    assert self_times(start, end, thread)[0].tolist() == [5, 5, 2]
