"""The process that tries a source of the user's own: what it leaves behind, and what is said of one that hangs."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.launch import preparation
from tests.harness.launch.running import alive, wait_for
from trainer.config import DataConfig, TrainerConfig
from trainer.errors import InputError

pytestmark = pytest.mark.slow

DATA = DataConfig(source="own_items:make")
FOUND = {"largest_id": 7, "smallest_id": 1, "trained_tokens": 3, "threads": [], "files": []}


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets what the trial's process does."""
    return lambda code: monkeypatch.setattr(preparation, "TRIAL", ("-c", code))


def test_helpers_that_the_source_starts_are_not_waited_for_and_end_with_the_trial(
    tmp_path: Path, trial: Callable[[str], None]
) -> None:
    """Also one in a session of its own."""
    pids = tmp_path / "pids"
    trial(
        "import pathlib, subprocess\n"
        "helpers = [subprocess.Popen(['sleep', '900'], start_new_session=session) for session in (False, True)]\n"
        f"pathlib.Path({str(pids)!r}).write_text(' '.join(str(helper.pid) for helper in helpers))\n"
        f"print({json.dumps(FOUND)!r})"
    )
    begun = time.monotonic()
    assert preparation._try(DATA, 600) == FOUND
    assert time.monotonic() - begun < 300  # The helpers sleep three times as long.
    wait_for(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()))


def test_a_thread_that_tokenizes_is_noted_once(
    trial: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    trial(f"print({json.dumps(FOUND | {'threads': ['Tokenizer.encode']})!r})")
    tried = preparation.TriedSources(300)
    for seed, batch_size in ((0, 8), (1, 8), (0, 4)):
        model = {"vocab_size": 64}
        data = {"source": "own_items:make", "batch_size": batch_size}
        tried.check("arm", TrainerConfig.model_validate({"model": model, "data": data, "seed": seed}))
    assert tried.notes == [
        "a thread of data.source own_items:make tokenizes (Tokenizer.encode): no stage includes its time, and "
        "waits for it count as reading"
    ]
    assert capsys.readouterr().err.count("note: a thread of ") == 1


def test_one_that_hangs_is_named_with_its_state_the_likely_cause_and_the_limit(trial: Callable[[str], None]) -> None:
    trial("import time; time.sleep(900)")
    with pytest.raises(InputError) as error:
        preparation._try(DATA, 3)
    found = re.fullmatch(
        r"data\.source: own_items:make returned no batch within 3 s \(limits\.start_s\): process (\d+) \(main\) is "
        r"sleeping in clock_nanosleep; likely cause: it waits for an event that does not happen; fix: .*; raise "
        r"limits\.start_s if it is only slow",
        str(error.value),
    )
    assert found is not None
    assert not alive(int(found[1]))
    with pytest.raises(ProcessLookupError):
        os.killpg(int(found[1]), 0)
