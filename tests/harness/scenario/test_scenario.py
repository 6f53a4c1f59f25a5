"""Scenario files: what is accepted, how layers combine, and one clear line for everything that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli import main
from harness.scenario.commands import open_scenario
from harness.scenario.load import load_scenario
from harness.scenario.plan import make_plan
from trainer.errors import InputError

HEAD = "name: x\nquestion: q\n"
ARMS = "arms:\n  a: null\n"
DATA_KEYS = "path, access, corpus, tokenizer, sequence_length, batch_size, shuffle, documents"


def write(folder: Path, text: str | bytes, name: str = "x.yaml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# (what the file says, line, start of the message)
WRONG: dict[str, tuple[str, int, str]] = {
    "unknown nested": (f"{HEAD}base:\n  data:\n    bach_size: 2\n{ARMS}", 5,
     f"base.data.bach_size: unknown key; did you mean 'batch_size'? allowed: {DATA_KEYS}"),
    "unknown in an arm": (f"{HEAD}arms:\n  a:\n    data.bach_size: 2\n", 5,
     "arms.a.data.bach_size: unknown key; did you mean 'batch_size'? allowed: path, "),
    "unknown section": (f"{HEAD}arms:\n  a:\n    batch_size: 2\n", 5,
     "arms.a.batch_size: unknown key; did you mean 'data.batch_size'? allowed: model, data, optimizer, compute, "),
    "unknown in the matrix": (f"{HEAD}{ARMS}matrix:\n  data.bach_size: [1]\n", 6,
     "matrix.data.bach_size: unknown key; did you mean 'batch_size'?"),
    "unknown at the top": (f"{HEAD}{ARMS}repeat: 3\n", 5,
     "repeat: unknown key; did you mean 'repeats'? allowed: name, "),
    "unknown in compare": (f"{HEAD}arms: {{a: null, b: null}}\ncompare:\n  - baseline: a\n    candidat: b\n", 5,
     "compare[0].candidate: this key is required (and 1 more)"),
    "number as a switch": (f"{HEAD}{ARMS}probes: {{nvml: 1}}\n", 5,
     "probes.nvml: must be 'auto', true or false; got 1\n"),
    "wrong edit": (f"{HEAD}{ARMS}whatif: [{{ranks: [16]}}]\n", 5, "whatif[0].ranks: must be one value; got [16]\n"),
    "unknown arm of requires": (f"{HEAD}{ARMS}requires: {{b: [tiktoken]}}\n", 5, "requires.b: no arm 'b'; arms: a"),
    "not a module name": (f"{HEAD}{ARMS}requires: {{a: [tik-token]}}\n", 5,
     "requires.a[0]: not a module name; give an importable name such as tiktoken"),
    "unknown isolated baseline": (f"{HEAD}{ARMS}controls: [data-only]\nisolated_baseline: b\n", 6,
     "isolated_baseline: no arm 'b'; arms: a"),
    "isolated baseline without its control": (f"{HEAD}{ARMS}isolated_baseline: a\n", 5,
     "isolated_baseline: needs the data-only control; add it to controls"),
    "wrong type": (f"{HEAD}base: {{data.batch_size: '2'}}\n{ARMS}", 3,
     "base.data.batch_size: must be an integer; got '2'"),
    "wrong value": (f"{HEAD}base: {{data.sequence_length: 1}}\n{ARMS}", 3,
     "base.data.sequence_length: must be greater than or equal to 2; got 1"),
    "wrong word": (
        f"{HEAD}base: {{data.path: text-paded}}\n{ARMS}",
        3,
        "base.data.path: must be 'text-padded', 'text-stream', 'tokens-padded', 'tokens-stream' or 'tokens-mmap'; "
        "got 'text-paded'; did you mean 'text-padded'?",
    ),
    "wrong matrix value": (f"{HEAD}{ARMS}matrix:\n  data.batch_size:\n    - 1\n    - two\n", 8,
     "matrix.data.batch_size[1]: must be an integer; got 'two'"),
    "matrix without a list": (f"{HEAD}{ARMS}matrix:\n  data.workers: 3\n", 6,
     "matrix.data.workers: must be a list; got 3"),
    "matrix twice": (f"{HEAD}{ARMS}matrix: {{steps: [3, 3]}}\n", 5,
     "matrix.steps: 2 of its values give the same arm name"),
    "matrix and arm": (f"{HEAD}arms:\n  a: {{steps: 3}}\nmatrix: {{steps: [3]}}\n", 4,
     "arms.a.steps: the matrix also sets steps; remove it from one of them"),
    "matrix within a section of an arm": (
        f"{HEAD}arms:\n  a: {{data.inject: null}}\nmatrix: {{data.inject.how: [busy]}}\n",
        4,
        "arms.a.data.inject: the matrix also sets data.inject.how; remove it from one of them",
    ),
    "matrix in itself": (f"{HEAD}{ARMS}matrix:\n  data.inject: [null]\n  data.inject.how: [busy]\n", 7,
     "matrix.data.inject.how: data.inject in the matrix already sets it"),
    "section as value": (f"{HEAD}base: {{data: 3}}\n{ARMS}", 3,
     f"base.data: must be a mapping of keys; got 3; allowed: {DATA_KEYS}"),
    "value as section": (f"{HEAD}base: {{steps.x: 1}}\n{ARMS}", 3, "base.steps: must be an integer; got {'x': 1}"),
    "two of one": (f"{HEAD}base: {{data.tokenizer: {{train: {{}}, pretrained: x}}}}\n{ARMS}", 3,
     "base.data.tokenizer: give exactly one of train, pretrained, sentencepiece"),
    "yes is a boolean": (f"{HEAD}arms:\n  a: {{data.path: no}}\n", 4, "arms.a.data.path: must be 'text-padded', "),
    "yes as a key": (f"{HEAD}arms:\n  yes: null\n", 4, "arms: key yes is not text; quote it"),
    "not finite": (f"{HEAD}base: {{optimizer.learning_rate: .nan}}\n{ARMS}", 3, "base.optimizer.learning_rate: not a "),
    "duplicate": (f"{HEAD}{ARMS}name: y\n", 5, "name: duplicate key (lines 1 and 5)"),
    "duplicate dotted": (f"{HEAD}base:\n  data: {{batch_size: 2}}\n  data.batch_size: 3\n{ARMS}", 4,
     "base.data.batch_size: given twice (lines 4 and 5)"),
    "empty part": (f"{HEAD}base: {{data..x: 1}}\n{ARMS}", 3, "base.data..x: a dotted key needs a name"),
    "syntax": (f"{HEAD}base: [1\narms: {{}}\n", 4, "not valid YAML: did not find expected ',' or ']'"),
    "tab": (f"{HEAD}base:\n\tsteps: 1\n", 4, "not valid YAML: found character that cannot start any token"),
    "two documents": ("a: 1\n---\nb: 1\n", 2,
     "not valid YAML: expected a single document in the stream (line 1), but found another document"),
    "anchor given twice": (f"{HEAD}arms:\n  a: &a {{steps: 3}}\n  b: &a {{steps: 4}}\n", 5,
     "not valid YAML: found duplicate anchor; first occurrence (line 4), second occurrence"),
    "cycle": (f"{HEAD}base: &a [*a]\n", 3, "base[0]: an alias refers to a value that contains it (cycle)"),
    "tag": (f"{HEAD}base: !!python/object:os.system {{}}\n", 3, "base: tag !!python/object:os.system is not allowed"),
    "deep": ("a: " + "[" * 100_000, 1, "nested more than 64 levels deep"),
    "list": ("- a\n", 1, "not a mapping; a scenario has keys and values"),
    "no arms": (HEAD, 1, "arms: this key is required"),
    "empty arms": (f"{HEAD}arms: {{}}\n", 3, "arms: give at least one"),
    "arms as a list": (f"{HEAD}arms: [a, b]\n", 3, "arms: must be a mapping of keys; got ['a', 'b']"),
    "arms as a list, and compared": (f"{HEAD}compare: [{{baseline: a, candidate: b}}]\narms: [a, b]\n", 4,
     "arms: must be a mapping of keys; got ['a', 'b']\n"),
    "name of a folder above": (f"name: ../x\nquestion: q\n{ARMS}", 1, "name: not usable as a folder name; allowed: "),
    "arm with a slash": (f"{HEAD}arms:\n  a/b: null\n", 4, "arms.a/b: not usable as a folder name; allowed: letters, "),
    "10,000 arms": (f"{HEAD}arms:\n" + "".join(f"  a{i}: {{data.batch_size: 2}}\n" for i in range(10_000)), 3,
     "arms: 10000 arms; at most 256"),
    "10,000 points": (
        f"{HEAD}{ARMS}matrix:\n" + "".join(f"  {key}: {list(range(1, 101))}\n" for key in ("steps", "data.batch_size")),
        5,
        "matrix: 10000 arms (1 in arms x 10000 matrix points); at most 256",
    ),
    "bomb": (
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        1,
        "f: expands to more than 200000 values",
    ),
    "unknown arm": (f"{HEAD}arms: {{text: null, tokens: null}}\ncompare:\n  - {{baseline: txt, candidate: tokens}}\n",
     5, "compare[0].baseline: no arm 'txt'; did you mean 'text'? arms: text, tokens"),
    "arm against itself": (f"{HEAD}{ARMS}compare: [{{baseline: a, candidate: a}}]\n", 5,
     "compare[0]: compares a with itself; use the a-a control"),
    "half a matrix name": (
        f"{HEAD}arms: {{a: null, b: null}}\nmatrix: {{steps: [1]}}\ncompare: [{{baseline: a, candidate: b@steps=1}}]\n",
        5,
        "compare[0]: only one name has a matrix point",
    ),
    "control": (f"{HEAD}{ARMS}controls: [ideal_data]\n", 5,
     "controls[0]: must be 'a-a', 'ideal-data', 'data-only' or 'dose'; got"),
    "repeats": (f"{HEAD}{ARMS}repeats: 1001\n", 5, "repeats: must be less than or equal to 1000; got 1001"),
    "floor as text": (f"{HEAD}{ARMS}noise_floor: 2%\n", 5, "noise_floor: must be a number; got '2%'"),
    "a parent with a NUL": (f'{HEAD}extends: "a\\0b"\n{ARMS}', 3, "extends: 'a\\x00b': no such file"),
    "a key like a mark of pydantic": (f"{HEAD}base:\n  data:\n    '[': 2\n{ARMS}", 5, "base.data.[: unknown key"),
    "a mark itself": (f"{HEAD}'[key]': 2\n{ARMS}", 3, "[key]: unknown key; allowed: "),
    "no parent": (f"{HEAD}extends: nowhere.yaml\n{ARMS}", 3, "extends: "),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_one_line(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, line, message = WRONG[case]
    path = write(tmp_path, text)
    assert main(["run", str(path), "--plan"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"harness: {path}:{line}: {message}")
    others = message.endswith(" more)")
    assert others or err.count("\n") == 1


@pytest.mark.parametrize(("content", "message"), [
    (b"", "empty; a scenario needs at least name, question and arms"),
    (b"# nothing\n", "empty; a scenario needs at least name, question and arms"),
    (b"name: \xff\n", "not UTF-8 text (byte 6)"),
    (b"a" * (2**24 + 1), "more than 16 MiB; give a scenario file"),
    (b"name: \x01\n", "not valid YAML: unacceptable character #x0001"),
    (b"name: \x00\n", "not valid YAML: unacceptable character #x0000"),
])  # fmt: skip
def test_a_file_that_is_no_yaml(content: bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, content)
    with pytest.raises(InputError) as caught:
        load_scenario(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    write(tmp_path, HEAD + ARMS, "here.yaml")
    with pytest.raises(InputError, match=r"there\.yaml: no such file; .* has here\.yaml$"):
        load_scenario(tmp_path / "there.yaml")
    with pytest.raises(InputError, match="is a directory; give a scenario file"):
        load_scenario(tmp_path)


def test_the_first_error_by_line_and_how_many_more(tmp_path: Path) -> None:
    path = write(tmp_path, f"{HEAD}repeats: 0\nbase:\n  data.bach_size: 2\n  steps: x\narms:\n  a: {{seeed: 1}}\n")
    with pytest.raises(InputError, match=r"x\.yaml:3: repeats: must be .*; got 0 \(and 3 more\)$") as caught:
        load_scenario(path)
    places = [line.split(": ")[:2] for line in caught.value.others]
    assert [(place.rpartition(":")[2], key) for place, key in places] == [
        ("5", "base.data.bach_size"), ("6", "base.steps"), ("8", "arms.a.seeed")
    ]  # fmt: skip


def test_numbers_with_an_exponent_and_dates(tmp_path: Path) -> None:
    text = "name: x\nquestion: 2026-11-21\nbase: {optimizer.learning_rate: 1e-3}\narms: {2026-11-21: }\n"
    scenario = load_scenario(write(tmp_path, text))
    assert scenario.question == "2026-11-21"
    assert list(scenario.arms) == ["2026-11-21"]
    assert make_plan(scenario, "x").arms[0].config.optimizer.learning_rate == 0.001


def test_yaml_anchors_and_merge_keys(tmp_path: Path) -> None:
    text = f"{HEAD}arms:\n  a: &a {{steps: 3, seed: 1}}\n  b: {{<<: *a, seed: 2}}\n  c: *a\n"
    arms = {arm.name: arm.declared for arm in make_plan(load_scenario(write(tmp_path, text)), "x").arms}
    assert arms == {"a": {"steps": 3, "seed": 1}, "b": {"steps": 3, "seed": 2}, "c": {"steps": 3, "seed": 1}}


class TestExtends:
    BASE = (
        "name: base\nquestion: q\nbase: {data: {batch_size: 4, workers: 1}}\n"
        "arms:\n  a: {steps: 3, seed: 5}\nrepeats: 7\n"
    )

    def test_the_file_is_laid_over_the_one_it_extends(self, tmp_path: Path) -> None:
        (tmp_path / "sub").mkdir()
        write(tmp_path, self.BASE, "base.yaml")
        child = "extends: ../base.yaml\nname: child\nbase: {data.batch_size: 8}\narms:\n  a: {steps: 9}\n  b: null\n"
        scenario = load_scenario(write(tmp_path / "sub", child))
        assert (scenario.name, scenario.question, scenario.repeats, scenario.extends) == ("child", "q", 7, None)
        assert scenario.base == {"data": {"batch_size": 8, "workers": 1}}
        assert scenario.arms == {"a": {"steps": 9, "seed": 5}, "b": None}

    def test_an_error_is_told_in_the_file_that_made_it(self, tmp_path: Path) -> None:
        base = write(tmp_path, self.BASE.replace("workers", "wokers"), "base.yaml")
        with pytest.raises(InputError, match=rf"^{base}:3: base\.data\.wokers: unknown key; did you mean 'workers'"):
            load_scenario(write(tmp_path, "extends: base.yaml\nname: child\n"))

    def test_a_cycle_names_the_chain(self, tmp_path: Path) -> None:
        for name, parent in (("a", "b"), ("b", "./c"), ("c", "a")):
            write(tmp_path, f"name: {name}\nextends: {parent}.yaml\n", f"{name}.yaml")
        chain = " -> ".join(str(tmp_path / f"{name}.yaml") for name in "abca")
        with pytest.raises(InputError) as caught:
            load_scenario(tmp_path / "a.yaml")
        assert str(caught.value) == f"{tmp_path / 'c.yaml'}:2: extends: a cycle: {chain}"


class TestSet:
    TEXT = f"{HEAD}base: {{data.corpus.builtin: python-docs}}\narms:\n  a: {{steps: 3}}\n  b: {{steps: 4, seed: 1}}\n"

    @pytest.mark.parametrize("key", ["data.batch_size", "base.data.batch_size"])
    def test_a_key_of_base(self, key: str, tmp_path: Path) -> None:
        plan = make_plan(load_scenario(write(tmp_path, self.TEXT), [f"{key}=3"]), "x")
        assert [arm.config.data.batch_size for arm in plan.arms] == [3, 3]
        assert not any("data.batch_size" in arm.declared for arm in plan.arms)

    def test_a_key_of_a_probe_leaves_its_others(self, tmp_path: Path) -> None:
        text = f"{self.TEXT}probes: {{torch_profiler: {{repeat: 3, shapes: true}}, host: false}}\n"
        sets = ["probes.torch_profiler.stack=true", "probes.py_spy.seconds=2", "probes.py_spy.gil=true"]
        probes = load_scenario(write(tmp_path, text), sets).probes
        assert (probes.torch_profiler.repeat, probes.torch_profiler.shapes, probes.torch_profiler.stack) == (
            3,
            True,
            True,
        )
        assert (probes.py_spy.seconds, probes.py_spy.gil) == (2, True)
        assert probes.host is False

    def test_settings_of_the_scenario_itself(self, tmp_path: Path) -> None:
        sets = ["repeats=2", "seed=3", "probes.timeline_steps=4", "controls=[a-a]", "base.seed=9"]
        scenario = load_scenario(write(tmp_path, self.TEXT), sets)
        assert (scenario.repeats, scenario.seed, scenario.probes.timeline_steps) == (2, 3, 4)
        assert scenario.controls == ["a-a"]
        assert scenario.base["seed"] == 9

    def test_values_are_yaml_and_one_corpus_replaces_another(self, tmp_path: Path) -> None:
        sets = ["data.inject={read_ms: 1e1}", "data.corpus.parquet=mine-*.parquet", "compute.threads="]
        config = make_plan(load_scenario(write(tmp_path, self.TEXT), sets), "x").arms[0].config
        assert config.data.inject.read_ms == 10
        assert (config.data.corpus.parquet, config.data.corpus.builtin) == ("mine-*.parquet", None)
        assert config.compute.threads is None

    def test_keys_of_the_scenario_itself(self, tmp_path: Path) -> None:
        scenario = load_scenario(write(tmp_path, self.TEXT), ["track=[jsonl]", "target_loss=3.5"])
        assert scenario.track == ["jsonl"]
        assert scenario.target_loss == 3.5

    @pytest.mark.parametrize(("text", "message"), [
        ("data.bach_size=2", "base.data.bach_size: unknown key; did you mean 'batch_size'? allowed: path"),
        ("bach_size=2", "base.bach_size: unknown key; did you mean"),
        ("data.batch_size=x", "base.data.batch_size: must be an integer; got 'x'"),
        ("data.batch_size", "give key=value, as in --set data.batch_size=2"),
        ("data.batch_size=[1", "not valid YAML: "),
        ("data..x=1", "base.data..x: a dotted key needs a name"),
        ("arms.a.steps=1", "only the file can set arms; --set takes keys of base, and name, question, "),
        ("steps=3", "has no effect: every arm of the scenario sets steps"),
        ("repeats=0", "repeats: must be greater than or equal to 1; got 0"),
        ("data.corpus.builtin=null", "base.data.corpus: give exactly one of builtin, parquet"),
    ])  # fmt: skip
    def test_wrong(self, text: str, message: str, tmp_path: Path) -> None:
        with pytest.raises(InputError) as caught:
            load_scenario(write(tmp_path, self.TEXT), [text])
        assert str(caught.value).startswith(f"--set {text}: {message}")
        assert "\n" not in str(caught.value)

    def test_what_the_matrix_sets(self, tmp_path: Path) -> None:
        path = write(tmp_path, f"{HEAD}{ARMS}matrix: {{data.batch_size: [1, 2]}}\n")
        with pytest.raises(InputError, match=r"has no effect: the scenario's matrix sets data\.batch_size$"):
            load_scenario(path, ["data.batch_size=2"])

    def test_the_options_for_repeats_and_interleave(self, tmp_path: Path) -> None:
        scenario = open_scenario(write(tmp_path, self.TEXT), repeats=3, interleave="runs")
        assert (scenario.repeats, scenario.interleave) == (3, "runs")
        with pytest.raises(InputError, match=r"^--repeats 0: repeats: must be greater than or equal to 1; got 0$"):
            open_scenario(tmp_path / "x.yaml", repeats=0)
