"""Lays the first screen out as plain lines for a terminal."""

from __future__ import annotations

import textwrap

from harness.show.first_screen import FirstScreen, VerdictCard
from harness.show.tables import aligned

WIDTH = 100
BLOCK = "\N{FULL BLOCK}"


def lines(screen: FirstScreen) -> list[str]:
    """Return warnings, a line for each comparison, the small table, and the next steps."""
    found = [*_wrapped("Emulated: ", screen.emulated)] if screen.emulated else []
    for warning in screen.beware:
        found += _wrapped("! ", warning)
    if screen.card is not None:
        found += card_lines(screen.card)
    else:
        for headline in screen.headlines:
            found += _wrapped("", headline.text)
    if screen.rows:
        header, rows = screen.columns
        found += ["", *aligned([header, *rows]), *_wrapped("", screen.horizon), ""]
    if screen.legend:
        found += [*_wrapped("", "; ".join(f"{short} = {name}" for short, name in screen.legend)), ""]
    return found + _next(screen)


def _next(screen: FirstScreen) -> list[str]:
    found = []
    if screen.next_steps.ranked:
        found.append("What to try next:")
        for place, line in enumerate(screen.next_steps.ranked, start=1):
            found += _wrapped(f"{place}. ", line)
    if screen.next_note:
        found += _wrapped("", screen.next_note)
    return found


def card_lines(card: VerdictCard) -> list[str]:
    """The verdict card: title, diagnosis, the bar of a step, findings, and how far to trust it."""
    found = [*_wrapped("", card.title), *_wrapped("", f"{card.diagnosis}: {card.cost}")]
    label, amount = (max(map(len, texts)) for texts in ([one.label for one in card.bar], [one.ms for one in card.bar]))
    room = WIDTH - label - amount - len("  100 %  ") - 2
    begun = 0.0
    for one in card.bar:  # each stretch begins where the one above ends: together they are the whole step
        start, end = round(room * begun), max(round(room * begun) + 1, round(room * (begun + one.length)))
        begun += one.length
        figures = f"{one.label:{label}}  {one.ms:>{amount}}  {one.percent:>5}"
        found.append(f"{figures}  {' ' * min(start, room - 1)}{BLOCK * max(1, min(end, room) - start)}".rstrip())
    for one_finding in card.findings:
        found += _wrapped("- ", one_finding)
    return [*found, *_wrapped("", card.trust)]


def _wrapped(mark: str, text: str) -> list[str]:
    return textwrap.wrap(mark + text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
