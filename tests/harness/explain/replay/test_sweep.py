"""Sweeps: where tokenization starts to matter."""

from __future__ import annotations

import pytest

from harness.explain.replay import Edits, Replays, parse_edits
from harness.explain.replay.whatif import Sweep, parse_sweep, sweep
from harness.show.sweeps import crossing_text, sweep_sentence
from tests.harness.explain.replay import oracle
from tests.harness.explain.replay.test_predict import SERIAL
from trainer.errors import InputError

# The optimizer runs for 8 ms on the device while the host builds the next batch in 4 ms: at twice the speed that is
# hidden to the last, at 2.1 times it is not.
KERNELS = {"h2d": 0.0, "forward": 4.0, "backward": 8.0, "norm": 0.0, "optimizer": 8.0}
HIDDEN = SERIAL.having(
    asynchronous=True, sync=True, latency=0.0, device=KERNELS, host=dict.fromkeys(SERIAL.host, 0.001), spread=0.0
)


def swept(text: str, *edits: str) -> Sweep:
    given = parse_edits(edits)
    return sweep(Replays([oracle.run(HIDDEN)]), given, *parse_sweep(text, given))


def test_the_crossover_is_found_between_the_values_given() -> None:
    found = swept("device=4x,1x,2x,8x")
    assert found.texts == ("1x", "2x", "4x", "8x")
    assert found.shares == pytest.approx((0, 0, 2 / 7, 3 / 5.5), abs=2e-3)
    (crossing,) = found.crossings
    # 1 % of a step of 12 / d + 4 ms is as long as 4 - 8 / d, the time that is exposed
    assert crossing.at == pytest.approx(8.12 / 3.96, rel=0.02)
    assert crossing_text(found, crossing) == "tokenization starts to matter between device=2x and 4x (about 2.07x)"
    assert sweep_sentence(found).startswith("crossover at 1 % of the step: tokenization starts")


def test_whole_numbers_are_tried_one_by_one() -> None:
    found = swept("workers=0,4", "device=4x")
    (crossing,) = found.crossings
    assert (crossing.at, crossing_text(found, crossing)) == (
        1.0,
        "tokenization stops mattering between workers=0 and 4 (at 1)",
    )


def test_no_crossover_is_said_with_what_there_is() -> None:
    assert sweep_sentence(swept("device=0.5x,1x")) == (
        "no crossover: tokenization costs at most 0.0 % of the step for device from 0.5x to 1x"
    )
    assert sweep_sentence(swept("device=4x,8x")) == (
        "no crossover: tokenization costs at least 29 % of the step for device from 4x to 8x"
    )


@pytest.mark.parametrize(
    ("text", "edits", "says"),
    [
        ("device", Edits(), "expected KEY=VALUE,VALUE"),
        ("tokenize=0,1ms", Edits(), "one of the keys device, workers"),
        ("device=1x", Edits(), "at least 2 different values"),
        ("device=1x,1x", Edits(), "at least 2 different values"),
        ("workers=0,many", Edits(), "--sweep workers=many: workers takes a whole number"),
        ("device=1x,2x", parse_edits(["device=2x"]), "device is set by --set as well"),
    ],
)
def test_a_wrong_sweep_is_refused_in_one_line(text: str, edits: Edits, says: str) -> None:
    with pytest.raises(InputError, match=r"^--sweep ") as caught:
        parse_sweep(text, edits)
    assert says in str(caught.value)
