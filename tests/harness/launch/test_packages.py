"""What counts as another environment: packages that a run needs, not those of tests and linters."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.launch import code
from harness.launch.code import needed, packages_of

PROJECT = '[project]\ndependencies = ["pydantic>=2.9", "matplotlib>=3.9"]\n'
PINS = "# versions\nannotated-types==0.8.0\npydantic==2.14.3\npydantic_core==2.50.4\npytest==9.2.0\n"


def state(folder: Path, pins: str = PINS, project: str = PROJECT) -> Path:
    folder.mkdir()
    (folder / "pyproject.toml").write_text(project)
    (folder / "constraints.txt").write_text(pins)
    return folder


def test_what_a_dependency_needs_is_needed_and_what_its_extras_need_is_not() -> None:
    found = needed(["pydantic>=2.9"])
    assert found is not None
    assert {"pydantic", "pydantic-core", "annotated-types", "typing-extensions"} <= found
    assert not found & {"email-validator", "tzdata", "pytest"}
    assert needed(["pydantic", "no-such-package-here"]) is None
    assert needed(["pydantic; python_version < '3'", "no-such-package-here; python_version < '3'"]) == found


def test_an_extra_that_is_asked_for_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = tmp_path / "with_extras-1.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    needs = "Requires-Dist: PyYAML\nRequires-Dist: pydantic_core[x] ; extra == 'Fast-One'\n"
    metadata.write_text(f"Metadata-Version: 2.1\nName: with_extras\nVersion: 1.0\n{needs}")
    monkeypatch.syspath_prepend(tmp_path)
    assert needed(["With.Extras >= 1"]) == {"with-extras", "pyyaml"}
    assert needed(["with-extras[fast_one, other]>=1"]) == {
        "with-extras",
        "pyyaml",
        "pydantic-core",
        "typing-extensions",
    }


@pytest.mark.parametrize(("before", "after", "same"), [
    ("pytest==9.2.0", "pytest==9.3.0", True),
    ("pytest==9.2.0\n", "pytest==9.2.0\nsyrupy==7.0.2 # snapshots\n", True),
    ("# versions\n", "# exact versions\n", True),
    ("pydantic_core==2.50.4", "pydantic-core==2.50.4", False),  # cautious: the same to pip
    ("pydantic_core==2.50.4", "pydantic_core==2.50.5", False),  # nobody asks for it by name
    ("pydantic==2.14.3\n", "", False),
])  # fmt: skip
def test_only_pins_of_what_a_run_needs_make_another_environment(
    tmp_path: Path, before: str, after: str, same: bool
) -> None:
    assert before in PINS
    first, second = state(tmp_path / "first"), state(tmp_path / "second", PINS.replace(before, after))
    assert (packages_of(first) == packages_of(second)) == same


def test_every_pin_counts_where_what_is_needed_is_not_known(tmp_path: Path) -> None:
    project = PROJECT.replace("matplotlib", "no-such-package-here")
    found = packages_of(state(tmp_path / "first", project=project))
    assert found is not None
    assert "pytest==9.2.0" in found.pins


def test_a_state_with_other_test_packages_runs_in_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "OWN_FOLDER", state(tmp_path / "here"))
    monkeypatch.setattr(code, "_environment", lambda _folder, home, _wanted: home / "made")
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    tested = state(tmp_path / "tested", PINS + "pytest-xdist==3.8.0\n")
    other = state(tmp_path / "other", PINS.replace("2.14.3", "2.13.0"))
    assert code._python(tested) == sys.executable
    assert code._python(other).endswith("/made")


def test_a_folder_that_does_not_say(tmp_path: Path) -> None:
    assert packages_of(tmp_path) is None
    for content in (
        b"[project]\nname = 'x'\n",
        b"project = [1]\n",
        b"project = 'x'\n",
        b"[project]\ndependencies = 'abc'\n",
        b"no toml",
        b"\xff\xfe",
    ):
        (tmp_path / "pyproject.toml").write_bytes(content)
        assert packages_of(tmp_path) is None, content
