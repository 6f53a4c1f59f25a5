"""The command line: what it prints, what it refuses and, in a process of its own, what it imports."""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness import __version__
from harness.cli import COMMANDS, GROUPS, _parser
from harness.study.contract import STEP_COLUMNS, column_reference
from harness.study.store import StudyFolder
from tests.commands import ROOT, harness
from tests.harness.synthetic import Arm, build, write
from trainer.files import temporary_path

SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))
HEAVY = {"torch", "pyarrow", "matplotlib", "rich", "transformers", "numpy"}
NOT_FOR_HELP = {*HEAVY, "pydantic", "yaml", "ruamel"}


def modules_after(words: list[str]) -> set[str]:
    """Every module that a process has imported when the command ends."""
    code = f"""
import sys
from harness.cli import main
try:
    status = main({words!r})
except SystemExit as done:
    status = done.code
print("", *sys.modules, sep="\\n", file=sys.stderr)
raise SystemExit(status)"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    return set(done.stderr.split())


def tops(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def refused(*words: str) -> str:
    """The one line of a command that is refused."""
    done = harness(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("harness: ")
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("harness: ").rstrip("\n")


HELP = """
import json, os, sys
from harness.cli import main
with open("/dev/null", "w") as sys.stdout:
    for words in json.loads(sys.argv[1]):
        if os.fork() == 0:
            try:
                main(words)
            except SystemExit as done:
                print(json.dumps([words, done.code, list(sys.modules)]), file=sys.stderr, flush=True)
            os._exit(0)
        os.wait()
"""


@pytest.fixture(scope="module")
def help_modules() -> dict[str, set[str]]:
    """Every module that is imported when a help text was printed; by the words before ``--help``."""
    asked = [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
    words = [sys.executable, "-c", HELP, json.dumps(asked)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(words, code) for words, code, _ in found] == [(words, 0) for words in asked]
    return {words[0]: set(modules) for words, _, modules in found}


@pytest.mark.slow
def test_help_waits_for_no_command(help_modules: dict[str, set[str]]) -> None:
    for word in ("--help", "--version"):
        modules = help_modules[word]
        assert "argparse" in modules
        assert not tops(modules) & NOT_FOR_HELP
        assert not modules & {module_of(name) for name in COMMANDS}


def module_of(command: str) -> str:
    return COMMANDS[command].module_name


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_imports_nothing_heavy(name: str, help_modules: dict[str, set[str]]) -> None:
    modules = help_modules[name]
    assert module_of(name) in modules
    assert not tops(modules) & NOT_FOR_HELP
    shared = {"baseline": {"compare"}, "run": {"report", "explain"}}  # what prints alike
    others = {other for other in COMMANDS if module_of(other) != module_of(name) and module_of(other) in modules}
    assert others == shared.get(name, set())


def test_every_command_of_the_table_is_there_and_every_file_of_the_folder_in_it() -> None:
    for command in COMMANDS.values():
        assert callable(command.function())
        assert callable(getattr(command.module(), command.arguments))
    folder = ROOT / "harness" / "commands"
    shared = {"__init__", "actions", "api", "arguments", "budgets", "data_needs", "durations", "exit_codes", "output"}
    files = {path.stem for path in folder.glob("*.py")} - shared
    actions = [found for name in ("data", "export", "import") for found in COMMANDS[name].module().ACTIONS.values()]
    assert files == {command.place.partition(":")[0] for command in (*COMMANDS.values(), *actions)}
    for action in actions:
        assert callable(action.function())
        assert callable(getattr(action.module(), action.arguments))


@pytest.mark.slow
def test_a_plan_imports_neither_torch_nor_arrow() -> None:
    names = tops(modules_after(["run", "scenarios/pretokenization.yaml", "--plan"]))
    assert "pydantic" in names
    assert not names & HEAVY


def test_help_lists_every_command_in_its_group_on_one_line() -> None:
    text = harness("--help", COLUMNS="80").stdout
    found = {
        title: section.splitlines() for title, section in re.findall(r"^(\S.*):\n((?:  .+\n)+)", text, re.MULTILINE)
    }
    assert {title: [line.split()[0] for line in lines] for title, lines in found.items()} == {
        **{title: list(group) for title, group in GROUPS.items()}, "Options": ["-h,", "--version"]
    }  # fmt: skip
    assert [name for group in GROUPS.values() for name in group] == list(COMMANDS)  # no name is in two groups
    assert harness("--version").stdout == f"harness {__version__}\n"


def options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """Every argument of a parser and of the parsers below it, with the name of its own."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from options(below)
        else:
            yield parser.prog, action


def test_the_help_of_every_value_names_it_and_says_what_it_is() -> None:
    unclear = re.compile(r"$|\(|(of|the same|which|with these)\b")
    everything = _parser().get_default("everything")()
    assert {f"{command}: {action.dest}: {action.metavar}: {action.help}" for command, action in options(everything)
            if unclear.match(action.help or "") or action.metavar in ("X", "VALUE")} == set()  # fmt: skip


def test_the_plan_has_every_run_as_a_table_and_as_json(tmp_path: Path) -> None:
    chosen = ["--repeats", "2", "--arm", "text-*", "--set", "data.batch_size=3"]
    # Of the folder of results it reads how long an earlier study took: not of the user's.
    words = ["run", "scenarios/quickstart.yaml", "--plan", *chosen, "--out", str(tmp_path)]
    done = harness(*words)
    assert done.returncode == 0, done.stderr
    _, *table, counts, _duration = done.stdout.splitlines()
    assert counts == "8 runs: 2 blocks x 4 (1 arm, 3 controls); 0 comparisons"
    plan = json.loads(harness(*words, "--json").stdout)
    planned = [[str(block), name] for block, names in enumerate(plan["blocks"]) for name in names]
    assert [row.split()[1:3] for row in table] == planned
    assert set(plan["arms"]) == {"text-padded", *(f"text-padded+{kind}" for kind in ("a-a", "ideal-data", "data-only"))}
    assert plan["arms"]["text-padded+a-a"]["of"] == "text-padded"
    assert plan["arms"]["text-padded+ideal-data"]["config"]["data"]["replay"] is True


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.name)
def test_shipped_scenarios_are_right_and_carry_the_schema(path: Path, tmp_path: Path) -> None:
    done = harness("run", str(path), "--plan", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert path.read_text().startswith("# yaml-language-server: $schema=schema.json\n")


def test_the_committed_schema_is_the_printed_one() -> None:
    done = harness("schema")
    assert done.stdout == (ROOT / "scenarios" / "schema.json").read_text()
    schema = json.loads(done.stdout)
    overrides = schema["$defs"]["Overrides"]["properties"]
    bounds = {"type": "integer", "minimum": 1, "maximum": 65536}
    assert overrides["data.batch_size"] | {"description": ""} == bounds | {"description": ""}
    assert {"model", "data.inject", "data.tokenizer.train.vocab_size", "steps"} <= set(overrides)
    scenario, commands = schema["$defs"]["Scenario"], schema["$defs"]["CommandScenario"]
    assert scenario["properties"]["matrix"]["properties"]["data.workers"]["items"] == overrides["data.workers"]
    assert {"command", "loop", "arms", "limits"} <= set(commands["properties"])
    assert schema["then"]["$ref"] == "#/$defs/CommandScenario"
    for reference in re.findall(r'"#/\$defs/(\w+)"', done.stdout):
        assert reference in schema["$defs"]


def test_the_command_prints_a_line_for_each_column() -> None:
    done = harness("schema", "--columns")
    assert (done.returncode, done.stdout) == (0, column_reference())
    assert all(f"| `{name}` | {kind} | " in done.stdout for name, kind in STEP_COLUMNS)


@pytest.mark.parametrize(("words", "line"), [
    (["compare", "a", "b", "--undecided-exit=--"], "--undecided-exit: '--' is not a value"),
    (["rnu"], f"unknown command 'rnu'; did you mean 'run'? allowed: {', '.join(COMMANDS)}"),
    (["data", "verfy", "x"], "data: unknown action 'verfy'; did you mean 'verify'? allowed: pretokenize, "),
    (["run", "x.yaml", "--repeets", "3"], "run: unknown argument '--repeets'; did you mean '--repeats'? allowed: "),
    (["run", "x.yaml", "--repeats", "x"], "argument --repeats: invalid int value: 'x'; see harness run --help"),
    (["exec", "python", "x.py"], "exec: put -- before the command: harness exec -- python x.py"),
    (["exec", "--steps", "3", "python", "x.py", "--lr", "1"],
     "exec: put -- before the command: harness exec --steps 3 -- python x.py --lr 1"),
    (["exec", "python", "x.py", "--", "--lr", "1"], "exec: put -- before the command: harness exec -- python x.py"),
    (["exec", "--steps", "3"], "exec: give a command: harness exec -- python train.py"),
    (["run"], "run: give a scenario file (scenarios/*.yaml), or --resume STUDY"),
    (["run", "--resume", "x", "--set", "a=1"], "run --resume: --set cannot be combined with it"),
    (["run", "scenarios"], "scenarios: is a directory; give a scenario file (*.yaml)"),
    (["run", "scenarios/quickstat.yaml"], "scenarios/quickstat.yaml: no such file; scenarios has "),
    (["data", "verify", "scenarios/quickstart.yaml", "--set", "data.x=1"], "--set data.x=1: base.data.x: unknown"),
    (["report", "x", "--format", "pdf"], "argument --format: invalid choice: 'pdf'"),
    (["report", "scenarios"], "scenarios/study.json: no such file; is this a study folder"),
    ([], "the following arguments are required: COMMAND; see harness --help"),
])  # fmt: skip
def test_a_wrong_command_line_is_one_line(words: list[str], line: str) -> None:
    assert refused(*words).startswith(line)


def test_report_prints_the_first_screen_and_where_the_summary_lies(tmp_path: Path) -> None:
    slow, fast = Arm("slow", tokenize=9.0), Arm("fast", tokenize=0.0, declared={"data.path": "tokens-padded"})
    write(StudyFolder(tmp_path), *build([slow, fast, *slow.controls("a-a")], [("slow", "fast")]))
    killed = [  # by processes with an id that Linux gives to none
        temporary_path(path / "table").name.replace(f".{os.getpid()}.", ".4194305.")
        for path in (tmp_path, tmp_path / "runs" / "slow" / "0")
    ]
    (tmp_path / killed[0]).write_text("half")
    (tmp_path / "runs" / "slow" / "0" / killed[1]).write_text("half")
    done = harness("report", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob(".*.tmp"))
    headline = json.loads((tmp_path / "summary.json").read_text())["comparisons"][0]["headline"]
    assert " ".join(done.stdout.split()).startswith(headline)
    assert done.stdout.splitlines()[-1] == f"summary: {tmp_path / 'summary.md'}"
    assert "fast against slow" in (tmp_path / "summary.md").read_text()


@pytest.mark.parametrize("words", [
    "report {}",
    "trace {} --run none/0",  # refused once the study is read, as it serves until Ctrl-C
    "whatif {} --set tokenize=0 --json",
    "compare {} {} --json",
])  # fmt: skip
def test_the_folder_of_a_scenario_is_its_newest_study(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.commands.trace._interface", lambda: tmp_path)
    of_scenario = Path("results", "made-up")
    older, newest = (of_scenario / name for name in ("20260101T000000Z-ffffff", "20260102T000000Z-aaaaaa"))
    for folder, tokenize in ((older, 9.0), (newest, 3.0)):
        write(StudyFolder(tmp_path / folder), *build([Arm("text", tokenize=tokenize)], []))
    (tmp_path / of_scenario / "20260103T000000Z-bbbbbb").mkdir()  # not a study yet
    (tmp_path / of_scenario / "later").symlink_to(older.name)  # not named by its time
    given, named = (harness(*words.format(folder, folder).split(), cwd=tmp_path) for folder in (newest, of_scenario))
    note = f"{of_scenario}: the newest study is {newest.name}\n"
    assert note not in given.stderr
    assert note in named.stderr
    shown = named.stdout + named.stderr.replace(note, "")
    assert (named.returncode, shown) == (given.returncode, given.stdout + given.stderr)


def lose_runs(folder: StudyFolder) -> str:
    shutil.rmtree(folder.path / "runs")
    folder.summary_json.unlink()  # the study's own status says that there was something
    return (
        f"{folder.path}: no table of its runs is left (no {folder.path / 'runs'}/*/*/run.json); its report is unchanged"
    )


def lose_tables(folder: StudyFolder) -> str:
    for path in folder.path.glob("runs/*/*/*.parquet"):
        path.unlink()
    why = "it was done, but its steps.parquet is missing"
    return f"{folder.path}: no table of its runs is left ({why}); its report is unchanged"


def damage_tables(folder: StudyFolder) -> str:
    for path in folder.path.glob("runs/*/*/steps.parquet"):
        path.write_bytes(b"PAR1")
    return "not a readable parquet file"


def lose_runs_of_an_interrupted_study(folder: StudyFolder) -> str:
    folder.write_study(replace(folder.read_study(), status="interrupted"))
    shutil.rmtree(folder.path / "runs")
    return "no table of its runs is left"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reported")
    write(StudyFolder(folder), *build([Arm("text", tokenize=3.0), Arm("tokens")], [("text", "tokens")], blocks=3))
    assert harness("report", str(folder)).returncode == 0
    return folder


@pytest.mark.parametrize("lose", [lose_runs, lose_tables, damage_tables, lose_runs_of_an_interrupted_study])
def test_a_report_is_not_replaced_by_a_page_of_nothing(
    whole: Path, tmp_path: Path, lose: Callable[[StudyFolder], str]
) -> None:
    folder = StudyFolder(Path(shutil.copytree(whole, tmp_path / "study")))
    reason = lose(folder)
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    assert reason in refused("report", str(folder.path))
    assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == before


def test_a_study_in_which_every_run_failed_has_a_page(tmp_path: Path) -> None:
    write(StudyFolder(tmp_path), *build([Arm("text", failed_blocks=(0, 1, 2))], [], blocks=3, status="failed"))
    for _ in range(2):  # its own page of before has no figures to lose
        assert harness("report", str(tmp_path)).returncode == 0
    assert "killed by signal 9" in (tmp_path / "summary.md").read_text()


@pytest.mark.slow
class TestData:
    """The real corpus cut short, so that the proof takes a second."""

    SMALL = ("--set", "data.corpus.documents=40", "--set", "data.tokenizer.train.vocab_size=400")
    SCENARIO = "scenarios/pretokenization.yaml"

    def test_pretokenize_writes_each_distinct_need_once(self, tmp_path: Path) -> None:
        own = ("--arm", "text-padded@*", "--arm", "tokens-*")  # the others' engine is another need
        words = ("data", "pretokenize", self.SCENARIO, *self.SMALL, *own, "--out", str(tmp_path / "out"))
        done = harness(*words)
        assert done.returncode == 0, done.stderr
        padded, _, tokens = done.stdout.splitlines()
        assert padded.startswith(f"{tmp_path / 'out' / 'padded'}: padded, 40 documents, ")
        assert padded.endswith(", sequence length 256")
        assert tokens.startswith(f"{tmp_path / 'out' / 'token-list'}: token-list, 40 documents, ")
        assert sorted(path.name for path in (tmp_path / "out" / "padded").iterdir()) == [
            "data.parquet",
            "digests.json",
            "manifest.json",
            "tokenizer",
        ]
        assert harness(*words).stdout == done.stdout
        stale = harness(*words, "--set", "data.sequence_length=64")
        assert stale.returncode == 2
        assert "sequence_length" in stale.stderr

    @pytest.mark.parametrize("action", ["verify", "pretokenize"])
    def test_a_source_of_ones_own_has_nothing_to_compare_or_to_write(self, action: str) -> None:
        line = refused("data", action, self.SCENARIO, "--set", "data.source=own_items:make")
        assert line.startswith("arm ")
        assert ": data.source: own_items:make makes its own batches, without a corpus, a tokenizer or" in line
        assert f"nothing to {action}; select other arms with --arm" in line

    def test_verify_names_what_is_identical(self) -> None:
        words = ("data", "verify", self.SCENARIO, *self.SMALL, "--arm", "text-*d@batch_size=2")
        done = harness(*words)
        assert done.returncode == 0, done.stderr
        (line,) = done.stdout.splitlines()
        assert line.startswith("identical (sequence length 256, batch size 2): 40 documents, ")
        assert "tokens-stream/zero-copy" in line
        stages = done.stderr.splitlines()
        assert sum(" by tokenizers " in stage for stage in stages) == 8  # what tokenizes all documents, and its engine

    def test_one_folder_cannot_take_two_needs(self, tmp_path: Path) -> None:
        text = "name: x\nquestion: q\narms:\n  a: null\n  b: {data.sequence_length: 32}\n"
        (tmp_path / "x.yaml").write_text(text)
        line = refused("data", "pretokenize", str(tmp_path / "x.yaml"), "--out", str(tmp_path / "out"))
        assert line == f"--out {tmp_path / 'out'}: the arms need 2 different sets; select with --arm or --set"


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error() -> None:
    command = [sys.executable, "-m", "harness", "run", "scenarios/quickstart.yaml", "--plan", "--repeats", "1000"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


def test_every_mistake_of_a_scenario_is_a_line(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("name: x\nquestion: q\nrepeats: 0\nbase:\n  data.bach_size: 2\narms:\n  a: {seeed: 1}\n")
    done = harness("run", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    first, *others = done.stderr.splitlines()
    assert first.endswith("repeats: must be greater than or equal to 1; got 0 (and 2 more)")
    assert [line.split(": ")[:3] for line in others] == [
        ["harness", f"{file}:5", "base.data.bach_size"], ["harness", f"{file}:7", "arms.a.seeed"]
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_a_script_completes_commands_and_their_options(shell: str) -> None:
    pytest.importorskip("shtab")
    done = harness("completion", shell)
    assert done.returncode == 0, done.stderr
    assert "undecided-exit" in done.stdout or shell == "tcsh"  # its options stand without dashes, some by a pattern
    assert all(name in done.stdout for name in COMMANDS)
    assert "token-list" in done.stdout  # of an action of a command
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True)


def test_a_write_that_fails_names_the_file_and_not_its_temporary_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(temporary_path(tmp_path / "stats.json")))

    monkeypatch.setattr("harness.commands.reference.list_shipped", full)
    done = harness("list")
    assert (done.returncode, done.stderr) == (1, f"harness: {tmp_path}/stats.json: No space left on device\n")
