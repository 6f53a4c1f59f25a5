"""States of the code: checked out, examined, and made to fit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.launch.code import Code, describe_checkout, environment_for, examine, find_code, fit_config
from harness.regress.run import between_states, with_codes
from harness.scenario.load import load_scenario
from harness.study.records import OtherDefault
from tests.repositories import git
from tests.studies import ROOT, copy_code, copy_packages
from trainer.config import TrainerConfig
from trainer.errors import InputError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with this project's code: the first commit lacks a configuration key that the second knows."""
    folder = tmp_path_factory.mktemp("repository")
    copy_packages(folder)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    config = folder / "trainer" / "config.py"
    text = config.read_text()
    without = "\n".join(line for line in text.splitlines() if "log_every" not in line) + "\n"
    assert without != text
    git(folder, "init", "--quiet")
    for content, message in ((without, "first"), (text, "second")):
        config.write_text(content)
        git(folder, "add", "-A")
        git(folder, "commit", "--quiet", "-m", message)
    return folder


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_CACHE", str(folder))
        yield folder


def test_a_revision_is_checked_out_once_and_used_again_unless_it_was_changed(repository: Path, cache: Path) -> None:
    code = find_code("HEAD~1", repository)
    commit = git(repository, "rev-parse", "HEAD~1").strip()
    assert (code.folder, code.label) == (str(cache / "code" / commit), commit[:12])
    assert code.python == sys.executable  # the same packages are asked for
    before = (Path(code.folder) / "trainer" / "config.py").stat().st_ino
    assert find_code("HEAD~1", repository) == code
    assert (Path(code.folder) / "trainer" / "config.py").stat().st_ino == before
    (Path(code.folder) / "trainer" / "loop.py").write_text("")
    with pytest.raises(InputError, match="differs from its checkout; delete it"):
        find_code("HEAD~1", repository)
    shutil.rmtree(code.folder)
    assert find_code("HEAD~1", repository) == code  # git still knows of the one that was deleted


def test_a_folder_is_used_as_it_is(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = find_code(str(repository), repository)
    head = git(repository, "rev-parse", "--short=12", "HEAD").strip()
    assert (code.folder, code.label) == (str(repository), describe_checkout(repository)) == (str(repository), head)
    monkeypatch.setenv("GIT_DIR", str(ROOT / ".git"))  # as in a hook of git
    assert find_code(str(repository), repository).label == head


def test_what_is_no_state_of_this_project(repository: Path, tmp_path: Path) -> None:
    for where in ("no-such-revision", "--upload-pack=x"):
        with pytest.raises(InputError, match="neither a folder nor a revision"):
            find_code(where, repository)
    with pytest.raises(InputError, match="not a state of this project"):
        find_code(str(tmp_path), tmp_path)


def test_a_side_answers_for_itself_and_a_key_it_does_not_know_yet_is_left_out(repository: Path) -> None:
    code = find_code("HEAD~1", repository)
    defaults = TrainerConfig().model_dump(mode="json")
    wrong = {**defaults, "steps": -1}
    found = examine(code, [defaults, wrong])
    assert found.environment["git_commit"] == code.label
    assert "log_every" not in found.defaults
    fitted = fit_config(code, defaults, defaults, found.errors[0])
    assert set(defaults) - set(fitted) == {"log_every"}
    with pytest.raises(InputError, match="has no key log_every, which this scenario sets"):
        fit_config(code, {**defaults, "log_every": 3}, defaults, found.errors[0])
    with pytest.raises(InputError, match="refuses steps of this scenario"):
        fit_config(code, wrong, defaults, found.errors[1])
    (Path(code.folder) / "trainer" / "config.py").write_text("raise RuntimeError('broken')\n")
    with pytest.raises(InputError, match=r"cannot be imported by .*RuntimeError: broken"):
        examine(code, [])


def test_a_key_that_says_what_every_run_did_before_it_is_left_out() -> None:
    """compute.sync norm is what states without the key do; late is the default; every-step they cannot do."""
    code = Code(".", sys.executable, "old")
    defaults = TrainerConfig().model_dump(mode="json")
    errors = [[["compute", "sync"], "extra_forbidden", "Extra inputs are not permitted"]]
    for sync in ("norm", "late"):
        config = {**defaults, "compute": {**defaults["compute"], "sync": sync}}
        assert "sync" not in fit_config(code, config, defaults, errors)["compute"]
    config = {**defaults, "compute": {**defaults["compute"], "sync": "every-step"}}
    with pytest.raises(InputError, match=r"old: has no key compute\.sync, which this scenario sets"):
        fit_config(code, config, defaults, errors)


def test_installed_code_is_found_without_its_neighbours_before_pythons_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "theirs")
    assert environment_for(Path("/v/lib/python3.11/site-packages"))["PYTHONPATH"] == "theirs"
    assert environment_for(Path("/v/checkout"))["PYTHONPATH"] == f"/v/checkout{os.pathsep}theirs"


def test_a_cache_named_from_here_is_meant_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_CACHE", "cache")
    elsewhere = Code(str(ROOT), sys.executable, "state", directory="/")
    for found in (environment_for(ROOT), elsewhere.environment()):
        assert found["HARNESS_CACHE"] == str(tmp_path / "cache")


def test_a_process_of_one_state_never_finds_another_in_the_current_directory(tmp_path: Path) -> None:
    """As the sampler of a base did, whose run was started from the folder of the head."""
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("raise RuntimeError('the code of the current directory')")
    script = """
from harness.probes.sampler.sampler import Sampler
from harness.probes.sampler.messages import SamplerSettings
sampler = Sampler(SamplerSettings(host=True, nvml=False), dict)
sampler.wait()
sampler.close()
print(sampler.problems)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment_for(ROOT), capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_defaults_that_two_states_do_not_share_are_told(tmp_path: Path) -> None:
    """Both run one configuration, so that no run would show them."""
    before = "log_every: int = Field(10, ge=1)"
    other = copy_code(tmp_path / "other", "trainer/config.py", before, before.replace("10", "12"))
    asked = between_states(load_scenario(ROOT / "scenarios" / "guard.yaml"), "guard.yaml", ["recorder"], None)
    _, records = with_codes(asked, str(ROOT), str(other), ROOT)
    assert records["recorder@head"].other_defaults == (OtherDefault("log_every", 10, 12),)
