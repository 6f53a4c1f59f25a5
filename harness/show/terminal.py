"""Lays the first screen out as plain lines for a terminal."""

from __future__ import annotations

import textwrap

from harness.show.first_screen import HEADER, FirstScreen
from harness.show.tables import aligned

WIDTH = 100


def lines(screen: FirstScreen) -> list[str]:
    """What must not be missed, a line for each comparison, the small table, and what to try next."""
    found = [*_wrapped("Emulated: ", screen.emulated)] if screen.emulated else []
    for warning in screen.beware:
        found += _wrapped("! ", warning)
    for headline in screen.headlines:
        found += _wrapped("", headline.text)
    if screen.rows:
        found += ["", *aligned([HEADER, *screen.rows]), ""]
    if screen.legend:
        found += [*_wrapped("", "; ".join(f"{short} = {name}" for short, name in screen.legend)), ""]
    if screen.next_steps.ranked:
        found.append("What to try next:")
        for place, line in enumerate(screen.next_steps.ranked, start=1):
            found += _wrapped(f"{place}. ", line)
    if screen.next_steps.note:
        found += _wrapped("", screen.next_steps.note)
    return found


def _wrapped(mark: str, text: str) -> list[str]:
    return textwrap.wrap(mark + text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
