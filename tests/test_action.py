"""action.yml and examples/workflow.yml: their steps run here, in a shallow clone, with a stand-in for GitHub's `gh`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.study.store import StudyFolder
from tests.commands import ROOT, WARM
from tests.repositories import begin_repository, git

pytestmark = pytest.mark.slow
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
(JOB,) = yaml.safe_load((ROOT / "examples" / "workflow.yml").read_text())["jobs"].values()
FOREIGN = {"actions/checkout", "actions/setup-python", "actions/upload-artifact"}
PLAIN = ROOT / "tests" / "harness" / "attach" / "programs" / "plain.py"
EXPRESSION = re.compile(r"\$\{\{ *([^ }]+) *\}\}")
# Prints the ids of earlier comments, and keeps what is written.
GH = """#!/bin/bash
echo "$*" >>"$GH_LOG"
case "$*" in
  *--jq*) cat "$GH_LOG.ids" ;;
  *) last=${!#}; cp "${last#body=@}" "$GH_LOG.body" ;;
esac
"""


@dataclass
class Runner:
    """What GitHub does with the steps of a job, as far as these need it."""

    folder: Path  # the checkout
    temporary: Path
    pull_request: str = "7"
    outputs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        commands = self.temporary / "bin"
        commands.mkdir(parents=True)
        for name, text in (("gh", GH), ("harness", f'#!/bin/sh\nexec {sys.executable} -m tests.commands "$@"\n')):
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        (self.temporary / "gh.log.ids").touch()
        python = str(Path(sys.executable).parent)
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(commands), python, os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            WARM: "1",
            "RUNNER_TEMP": str(self.temporary),
            "GH_LOG": str(self.temporary / "gh.log"),
            "GITHUB_STEP_SUMMARY": str(self.temporary / "summary.md"),
            "GITHUB_OUTPUT": str(self.temporary / "output"),
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_REPOSITORY": "theirs/model",
            **{f"GITHUB_{name}": name.lower() for name in ("ACTION", "WORKFLOW", "JOB")},
        }

    def step(self, step: dict[str, Any], inputs: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Run one step; the outputs that it writes are those of the id that it has."""
        known = {
            **{f"inputs.{name}": value for name, value in inputs.items()},
            **self.outputs,
            "github.base_ref": "trunk" if self.pull_request else "",
            "github.event.pull_request.number": self.pull_request,
            "github.token": "secret",
        }

        def value(text: str) -> str:
            return EXPRESSION.sub(lambda found: value(known[found[1]]), str(text))

        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.folder / value(step.get("working-directory", ".")),
            env={**self.environment, **{name: value(text) for name, text in step.get("env", {}).items()}},
            capture_output=True,
            text=True,
            timeout=500,
        )
        written = Path(self.environment["GITHUB_OUTPUT"])
        for line in written.read_text().splitlines() if written.exists() else []:
            name, _, text = line.partition("=")
            self.outputs[f"steps.{step['id']}.outputs.{name}"] = text
        written.unlink(missing_ok=True)
        return done

    def action(self, given: dict[str, str], names: set[str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run the steps of action.yml, or those of ``names``, until one fails."""
        assert set(given) <= set(ACTION["inputs"])
        inputs = {name: str(given.get(name, settings["default"])) for name, settings in ACTION["inputs"].items()}
        for step in ACTION["runs"]["steps"]:
            if names is None or step["name"] in names:
                done = self.step(step, inputs)
                if done.returncode:
                    break
        return done


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A shallow clone of a pull request's branch, which makes each step of a training longer."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    program = PLAIN.read_text().replace("default=60", "default=100_000")
    compute = '"--compute-ms", type=float, default={}'
    assert compute.format(0) in program
    (theirs / "train.py").write_text(program.replace(compute.format(0), compute.format(4)))
    (theirs / "requirements.txt").write_text("# torch is installed\n")
    begin_repository(theirs)
    git(theirs, "branch", "-m", "trunk")
    git(theirs, "checkout", "-qb", "slower")
    (theirs / "train.py").write_text(program.replace(compute.format(0), compute.format(12)))
    git(theirs, "commit", "-qam", "slower")
    git(theirs, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(tmp_path, "clone", "-q", "--depth=1", "--branch=slower", f"file://{theirs}", "clone")
    return tmp_path / "clone"


@pytest.mark.nightly
def test_a_pull_request_that_slows_a_training_fails_with_a_comment(clone: Path, tmp_path: Path) -> None:
    runner = Runner(clone, tmp_path / "runner")
    steps = [step for step in JOB["steps"] if step.get("uses", "").partition("@")[0] not in FOREIGN]
    install, uses = steps
    assert runner.step(install, {}).returncode == 0
    assert uses["uses"].partition("@")[0].endswith("/llm-training-harness")
    done = runner.action({**uses["with"], "options": "--steps 20 --startup-within off --memory-within off"})
    assert done.returncode == 3, done.stderr
    assert runner.outputs["steps.measure.outputs.result"] == "slower"
    page = Path(runner.outputs["steps.measure.outputs.page"]).read_text()
    assert (tmp_path / "runner" / "summary.md").read_text() == page
    marker, _, body = (tmp_path / "runner" / "gh.log.body").read_text().partition("\n")
    assert (marker, body) == ("<!-- training speed: workflow, job, action -->", page)
    asked, posted = (tmp_path / "runner" / "gh.log").read_text().splitlines()
    assert "repos/theirs/model/issues/7/comments" in asked
    assert "--method POST repos/theirs/model/issues/7/comments" in posted
    (path,) = (clone / "results" / "regress").iterdir()
    commits = {run.record.arm: run.record.environment["git_commit"] for run in StudyFolder(path).runs()}
    assert commits["script@base"] == git(tmp_path / "theirs", "rev-parse", "--short=12", "trunk").strip()
    assert commits["script@head"] == git(clone, "rev-parse", "--short=12", "HEAD").strip()


@pytest.mark.parametrize(("status", "given", "code"), [
    ("0", {}, 0),
    ("1", {}, 1),
    ("2", {}, 2),
    ("3", {}, 3),
    ("4", {}, 0),
    ("4", {"fail-on-undecided": "true"}, 4),
    ("0", {"fail-on-undecided": "true"}, 0),
])  # fmt: skip
def test_the_exit_code_of_the_check_is_that_of_the_job(
    tmp_path: Path, status: str, given: dict[str, str], code: int
) -> None:
    runner = Runner(tmp_path, tmp_path / "runner", outputs={"steps.measure.outputs.status": status})
    assert runner.action(given, {"verdict"}).returncode == code


@pytest.mark.parametrize(("ids", "pull_request", "given", "page", "method"), [
    ("", "7", {}, "page", "POST repos/theirs/model/issues/7/comments"),
    ("12\n13\n", "7", {}, "page", "PATCH repos/theirs/model/issues/comments/12"),
    ("", "7", {"comment": "false"}, "page", None),
    ("", "", {}, "page", None),  # no pull request
    ("", "7", {}, "", None),  # the check wrote no page
])  # fmt: skip
def test_a_pull_request_has_one_comment(
    tmp_path: Path, ids: str, pull_request: str, given: dict[str, str], page: str, method: str | None
) -> None:
    path = tmp_path / "page.md"
    path.write_text(page)
    runner = Runner(tmp_path, tmp_path / "runner", pull_request, {"steps.measure.outputs.page": str(path)})
    (tmp_path / "runner" / "gh.log.ids").write_text(ids)
    done = runner.action(given, {"comment"})
    assert (done.returncode, done.stdout) == (0, "")
    log = tmp_path / "runner" / "gh.log"
    written = [line for line in log.read_text().splitlines() if "--method" in line] if log.exists() else []
    assert len(written) == (method is not None)
    assert all(f"--method {method} " in line for line in written)


def test_a_token_that_may_not_write_fails_no_check(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("page")
    runner = Runner(tmp_path, tmp_path / "runner", outputs={"steps.measure.outputs.page": str(path)})
    (tmp_path / "runner" / "bin" / "gh").write_text("#!/bin/sh\nexit 1\n")
    done = runner.action({}, {"comment"})
    assert done.returncode == 0
    assert done.stdout.startswith("::warning::")
