"""Find another state of the code for runs to execute: a commit checked out in the cache, or another folder.

A commit gets a git worktree under ``<cache>/code/<commit>``. If both sides require the same packages, they use this
Python; otherwise the other gets an environment under ``<cache>/environments/<fingerprint>``. Packages are the project's
dependencies with the pins of its constraints, transitively, without those of tests and linters.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from harness.launch.protocol import NOT_THIS_PROJECT, PATHS, Paths, protocol_of
from harness.machine.environment import describe_checkout, git, has_nvidia_driver
from harness.study.records import CodeRecord
from trainer.config import BEFORE
from trainer.data.cache import cache_root
from trainer.errors import InputError
from trainer.json_types import Json, JsonObject
from trainer.user_code import CODE_PATH

OWN_FOLDER = Path(__file__).parents[2]  # the code that is running now
INSTALLED = ("site-packages", "dist-packages")  # folders that pip installs this code into, without `-e`
_PIP_S = 3600
EXAMINE_S = 300.0  # limit for importing the configuration of a state of the code, maybe from a slow disk
# Script for the side's own Python and code: prints its version and the configuration keys that it knows.
_PROBE = """
import json, sys
import harness, trainer
from {environment} import record_environment
from pydantic import ValidationError
from trainer.config import TrainerConfig
unknown = []
for config in json.load(sys.stdin):
    try:
        TrainerConfig.model_validate(config)
        unknown.append([])
    except ValidationError as error:
        unknown.append([[list(e["loc"]), e["type"], e["msg"]] for e in error.errors()])
print(json.dumps({"harness": harness.__file__, "trainer": trainer.__path__[0], "environment": record_environment(),
                  "errors": unknown, "defaults": TrainerConfig().model_dump(mode="json")}))
"""


@dataclass(frozen=True)
class Code(CodeRecord):
    """State of the code, a folder with its Python, to start runs from. Runs of the current code have None instead."""

    @property
    def paths(self) -> Paths:
        """Names of the modules by which the launcher starts and asks this state, by its protocol version."""
        return PATHS[self.protocol]

    @property
    def places(self) -> list[str] | None:
        """Folders in which runs look for the user's code first; None if it is the same as in this process."""
        return None if self.directory is None else [self.directory, *self.path]

    def environment(self) -> dict[str, str]:
        """Return the environment variables for a process that runs this state of the code."""
        variables = environment_for(Path(self.folder))
        if self.directory is None:
            return variables
        # Relative paths start at the launcher's working directory.
        entries = [str(Path(entry).absolute()) for entry in variables.get("PYTHONPATH", "").split(os.pathsep) if entry]
        path = {"PYTHONPATH": os.pathsep.join(entries)} if entries else {}
        return {**variables, **path, CODE_PATH: os.pathsep.join(self.path)}

    def command(self, *arguments: str) -> list[str]:
        """Return a command line: the Python of this state of the code, with ``arguments``."""
        return [self.python, *arguments]


def environment_for(folder: Path) -> dict[str, str]:
    """Return the environment variables for a process that runs the code in ``folder``: Python imports this project from
    there, before an installed copy, and never from the current directory.
    """
    variables = {**os.environ, "PYTHONSAFEPATH": "1", "HARNESS_CACHE": str(cache_root())}
    # An installed package is found anyway. On PYTHONPATH, every package beside it would precede Python's own.
    if folder.name in INSTALLED:
        return variables
    inherited = os.environ.get("PYTHONPATH")
    return {**variables, "PYTHONPATH": str(folder) + (f"{os.pathsep}{inherited}" if inherited else "")}


def holds_code(where: str, repository: Path) -> bool | None:
    """True if ``where`` contains this project's code, False for other files, None if it is no folder or revision."""
    servers = [paths.fork_server.replace(".", "/") + ".py" for paths in PATHS.values()]
    folder = Path(where)
    if folder.is_dir():
        return (folder / "trainer").is_dir() and any((folder / server).is_file() for server in servers)
    try:
        commit = _commit(where, repository)
    except InputError:
        return None
    names = git(repository, "ls-tree", "--full-tree", "--name-only", commit, "trainer", *servers).splitlines()
    return "trainer" in names and len(names) > 1


def find_code(where: str, repository: Path) -> Code:
    """Return the state of the code at ``where`` (a folder, or a revision of ``repository``, checked out), with an
    environment if it requires other packages. Raises InputError if ``where`` is neither, or lacks the harness.
    """
    if not where:
        raise InputError("an empty name is neither a folder nor a revision")
    folder = Path(where)
    if folder.is_dir():
        folder = folder.resolve()
        label = describe_checkout(folder) or folder.name
    else:
        commit = _commit(where, repository)
        if not holds_code(where, repository):  # Check before git registers a worktree in an unrelated repository.
            raise InputError(
                f"{where}: its commit {commit[:12]} has no harness/launch/ or no trainer/: {NOT_THIS_PROJECT}"
            )
        with _alone(cache_root() / "code"):
            folder, label = _worktree(commit, repository), commit[:12]
    try:
        protocol = protocol_of(folder)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    return Code(str(folder), _python(folder), label, protocol)


@dataclass(frozen=True)
class Examined:
    """Answer of a state of the code: environment and default configuration; ``errors`` per configuration."""

    environment: JsonObject
    defaults: JsonObject
    errors: list[list[Any]]


def examine(code: Code, configs: Sequence[JsonObject], timeout_s: float = EXAMINE_S) -> Examined:
    """Ask a process of a state of the code for its environment, default configuration and errors for ``configs``.

    Raises InputError if it cannot be imported within ``timeout_s`` seconds, or is imported from elsewhere.
    """
    try:
        done = subprocess.run(
            code.command("-c", _PROBE.replace("{environment}", code.paths.environment)),
            input=json.dumps(configs),
            env=code.environment(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{code.label}: cannot be imported by {code.python} within {timeout_s:.0f} s") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise InputError(f"{code.label}: cannot be imported by {code.python} ({last})")
    answer = json.loads(done.stdout.splitlines()[-1])  # The import itself may print lines before it.
    for name in ("harness", "trainer"):
        if not Path(answer[name]).resolve().is_relative_to(Path(code.folder).resolve()):
            raise InputError(f"{code.label}: {name} is imported from {answer[name]}, not from {code.folder}")
    return Examined({**answer["environment"], "git_commit": code.label}, answer["defaults"], answer["errors"])


def fit_config(code: Code, config: JsonObject, defaults: JsonObject, errors: list[Any]) -> JsonObject:
    """Return ``config`` without the keys that the state ``code`` does not know (``errors`` of :func:`examine`). A
    removed key must be null, a default, or what was done before it existed (:data:`BEFORE`). Raises InputError
    otherwise, and for a refused value.
    """
    fitted: dict[str, Json] = json.loads(json.dumps(config))
    for path, kind, message in errors:
        location = [part for part in path if not str(part).startswith("[")]  # drops the names of union members
        dotted = ".".join(map(str, location))
        if kind != "extra_forbidden":
            raise InputError(f"{code.label}: refuses {dotted} of this scenario ({message}); use what both allow")
        asked = _value(config, location)
        if asked is not None and asked not in (_value(defaults, location), BEFORE.get(dotted)):
            raise InputError(
                f"{code.label}: has no key {dotted}, which this scenario sets; remove it, or choose states that have it"
            )
        (_value(fitted, location[:-1]) or {}).pop(location[-1], None)
    return fitted


def fingerprint(folder: Path) -> str:
    """Return a hash of the Python and YAML files of this project in ``folder``. It changes with every changed file."""
    digest = hashlib.sha256()
    for package in ("harness", "trainer", "profiles"):
        for path in sorted((folder / package).rglob("*")):
            if path.suffix in (".py", ".yaml"):
                digest.update(f"{path}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _commit(revision: str, repository: Path) -> str:
    try:
        return git(repository, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(
            f"{revision}: neither a folder nor a revision of the git repository at {repository.resolve()}"
        ) from error


def _worktree(commit: str, repository: Path) -> Path:
    folder = cache_root() / "code" / commit
    if folder.is_dir():
        checkout = describe_checkout(folder)
        if checkout == commit[:12]:
            return folder
        link = (folder / ".git").read_text().removeprefix("gitdir:").strip() if (folder / ".git").is_file() else ""
        if checkout is not None or Path(link).is_dir():
            raise InputError(f"{folder}: differs from its checkout; delete it")
        shutil.rmtree(folder)  # The repository of this worktree is gone.
    try:
        git(repository, "worktree", "prune")  # The folder was deleted.
        git(repository, "worktree", "add", "--detach", "--force", str(folder), commit)
    except subprocess.SubprocessError as error:
        reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
        raise InputError(f"{commit[:12]}: git worktree: {reason}") from error
    return folder


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of the cache ``folder`` within the context, so that no other process creates anything in it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _python(folder: Path) -> str:
    """Return the Python for the code in ``folder``: this one for equal packages, else that of an environment."""
    wanted, current = packages_of(folder), packages_of(OWN_FOLDER)
    if wanted is None or current is None or wanted == current:
        return sys.executable
    key = json.dumps([wanted.asked, wanted.pins, sys.version_info[:2]])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    with _alone(cache_root() / "environments"):
        return str(_environment(folder, cache_root() / "environments" / digest, wanted))


def _environment(folder: Path, home: Path, wanted: Packages) -> Path:
    """Return the Python of the environment in ``home``, created with the packages ``wanted`` if missing."""
    python = home / "bin" / "python"
    if (home / ".complete").exists():
        return python
    print(f"{folder.name}: requires other packages: creating an environment in {home} (once)", file=sys.stderr)
    # Like in the Makefile, an NVIDIA machine keeps its installed packages, including torch.
    nvidia, constraints = has_nvidia_driver(), folder / CONSTRAINTS
    pins = ["-c", str(constraints)] if constraints.is_file() and not nvidia else []
    try:
        for command in (
            [sys.executable, "-m", "venv", "--clear", *(["--system-site-packages"] if nvidia else []), str(home)],
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pins, *wanted.asked],
        ):
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=_PIP_S)
    except subprocess.SubprocessError as error:
        reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
        raise InputError(f"{folder}: its packages cannot be installed ({reason})") from error
    (home / ".complete").touch()
    return python


def _value(nested: Any, location: list[Any]) -> Any:
    for key in location:
        nested = nested.get(key) if isinstance(nested, Mapping) else None
    return nested


CONSTRAINTS = "constraints.txt"
# A requirement or a pin: its name, optional extras, and the rest (a marker follows a semicolon).
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^]]*)\])?([^#]*)")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


@dataclass(frozen=True)
class Packages:
    """Packages that a run of one state of the code needs. Two states with equal packages run in one environment."""

    asked: tuple[str, ...]  # requirements as written in the project
    pins: tuple[str, ...]  # lines of its constraints for these packages and their dependencies


def packages_of(folder: Path) -> Packages | None:
    """Return the packages that the project in ``folder`` requires; None without a readable list of them."""
    try:
        dependencies = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["dependencies"]
    except (OSError, KeyError, TypeError, ValueError):  # ValueError: invalid TOML or UTF-8
        return None
    if not isinstance(dependencies, list):
        return None
    asked = tuple(sorted(str(dependency) for dependency in dependencies))
    return Packages(asked, tuple(sorted(_pins(folder / CONSTRAINTS, needed(asked)))))


def _pins(constraints: Path, needed: frozenset[str] | None) -> set[str]:
    lines = constraints.read_text(errors="replace").splitlines() if constraints.is_file() else []
    pins = {line.partition("#")[0].strip() for line in lines} - {""}
    return {pin for pin in pins if needed is None or (name := _name(pin)) is None or name in needed}


def needed(asked: Iterable[str]) -> frozenset[str] | None:
    """Return the names of all packages that ``asked`` lead to, by the versions installed here. None if one is
    malformed, or not installed and without a condition.
    """
    names: set[str] = set()
    visited: set[tuple[str, frozenset[str]]] = set()
    todo = list(asked)
    while todo:
        requirement = todo.pop()
        if (match := _REQUIREMENT.match(requirement)) is None:
            return None
        name = _normal(match[1])
        extras = frozenset(_normal(extra) for extra in (match[2] or "").split(",") if extra.strip())
        if (name, extras) in visited:
            continue
        visited.add((name, extras))
        try:
            dependencies = requires(name) or []
        except PackageNotFoundError:
            if ";" in requirement:  # for another platform or Python
                continue
            return None
        names.add(name)
        todo += [dependency for dependency in dependencies if _applies(dependency, extras)]
    return frozenset(names)


def _applies(requirement: str, extras: frozenset[str]) -> bool:
    """True if a package's ``requirement`` holds always, or for one of the requested ``extras``."""
    required = {_normal(extra) for extra in _EXTRA.findall(requirement)}
    return not required or bool(required & extras)


def _name(pin: str) -> str | None:
    match = _REQUIREMENT.match(pin)
    return None if match is None else _normal(match[1])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
