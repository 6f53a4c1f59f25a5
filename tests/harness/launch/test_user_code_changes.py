"""Code of the user's own that changes while a study runs: also the files that the named one imports."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.launch import preparation
from harness.launch.facts import check_unchanged
from harness.launch.preparation import StudyData, prepare_data
from tests.commands import ROOT
from trainer.config import TrainerConfig
from trainer.data.prepare import prepare
from trainer.errors import InputError
from trainer.user_code import find, fingerprint, own_files

CONFIG = TrainerConfig.model_validate(
    {
        "model": {"factory": "own_made:model", "vocab_size": 64},
        "data": {"source": "own_made:data"},
        "compute": {"device": "cpu"},
    }
)


@pytest.fixture(autouse=True)
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in {
        "own_made.py": "import numpy, trainer.errors\nfrom own_parts import helper\n"
        "def data(): ...\ndef model(): ...\n",
        "own_parts/__init__.py": "",
        "own_parts/helper.py": "MS = 1\n",
        "own_other.py": "",
        "lib/site-packages/own_library.py": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "lib" / "site-packages"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def imported(folder: Path) -> list[str]:
    return [str(Path(file).relative_to(folder.resolve())) for file in own_files(folder)]


def test_the_users_own_files_are_those_in_his_folder_that_were_imported(tmp_path: Path) -> None:
    assert imported(tmp_path) == []
    find("data.source", "own_made:data")
    importlib.import_module("own_library")
    assert imported(tmp_path) == ["own_made.py", "own_parts/__init__.py", "own_parts/helper.py"]
    assert not [path for path in imported(ROOT) if path.startswith(("harness/", "trainer/"))]


def test_a_fingerprint_of_no_other_files_is_what_it_was(tmp_path: Path) -> None:
    alone = fingerprint("data.source", "own_made:data")
    assert fingerprint("data.source", "own_made:data", others=[str(tmp_path / "own_made.py")]) == alone
    helper = tmp_path / "own_parts" / "helper.py"
    more = fingerprint("data.source", "own_made:data", others=[str(helper)])
    assert more != alone
    helper.unlink()
    assert fingerprint("data.source", "own_made:data", others=[str(helper)]) not in (more, alone)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StudyData:
    """What the launcher finds, with trials in this process."""

    def answer(key: str, name: str, *_: Any) -> dict[str, Any]:
        find(key, name)
        batch = {"largest_id": 1, "smallest_id": 0, "trained_tokens": 1, "threads": []}
        return batch | {"files": own_files(tmp_path)}

    monkeypatch.setattr(preparation, "_answer", answer)
    return prepare_data({"one": CONFIG}, 30)


def check_as_a_run(found: StudyData) -> None:
    message = found.by_arm["one"]
    files = message["files"]
    model = fingerprint("model.factory", "own_made:model", others=files["model.factory"])
    check_unchanged(CONFIG, prepare(CONFIG.data, files=files["data.source"]), model, message)


def test_a_run_finds_what_the_study_was_begun_with(tmp_path: Path, prepared: StudyData) -> None:
    (tmp_path / "own_other.py").write_text("more = 1\n")  # which was not imported
    check_as_a_run(prepared)
    assert set(prepared.fingerprints) == {"code of data.source own_made:data", "code of model.factory own_made:model"}


@pytest.mark.parametrize("changed", ["own_made.py", "own_parts/helper.py"])
def test_a_run_that_finds_other_code_fails_and_so_does_a_resume(
    tmp_path: Path, prepared: StudyData, changed: str
) -> None:
    (tmp_path / changed).write_text((tmp_path / changed).read_text() + "more = 1\n")
    with pytest.raises(InputError, match=r"^the code of data.source own_made:data changed since the study began"):
        check_as_a_run(prepared)
    again = prepare_data({"one": CONFIG}, 30).fingerprints
    assert all(again[what] != before for what, before in prepared.fingerprints.items())


def test_a_changed_factory_fails_the_run_too(prepared: StudyData) -> None:
    message = prepared.by_arm["one"]
    files = message["files"]
    data = prepare(CONFIG.data, files=files["data.source"])
    with pytest.raises(InputError, match=r"^the code of model.factory own_made:model changed since the study"):
        check_unchanged(CONFIG, data, "another", message)
    del message["model"]  # of a launcher that does not say
    check_unchanged(CONFIG, data, "another", message)
