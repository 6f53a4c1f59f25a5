"""Published tables: digits are kept, and whatever is wrong is one line with file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.audit.load import _AuditSection, load_published
from harness.audit.table import Table
from trainer.devices.estimates import parameters
from trainer.errors import InputError

FOLDER = Path(__file__).parents[3] / "profiles" / "published"
SHIPPED = sorted(FOLDER.glob("*.yaml"))
SMALLEST = "title: t\nsource: s\nrows:\n  - {name: a}\n"


def load(tmp_path: Path, text: str) -> Table:
    path = tmp_path / "table.yaml"
    path.write_text(text, encoding="utf-8")
    return load_published(path)


def test_three_tables_are_shipped() -> None:
    assert [path.stem for path in SHIPPED] == ["founding-gh200", "llmc-gpt2-124m", "nanogpt-gpt2-124m"]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_tables_cite_their_sources(path: Path) -> None:
    table = load_published(path)
    assert table.source
    assert table.declared.shape is not None
    for row in table.rows:
        assert row.source or path.stem == "founding-gh200"  # one source for that whole table


def test_digits_are_kept_as_printed() -> None:
    table = load_published(FOLDER / "founding-gh200.yaml")
    first = table.rows[0]
    printed = [figure.text for figure in (first.tokens_per_s, first.mfu_percent, first.tflops) if figure]
    assert printed == ["6544.40", "31.97", "316.23"]
    assert [figure.text for figure in table.isolated_ms.values()] == ["2.70", "1.68", "0.46"]


def test_the_smallest_file_and_every_shape(tmp_path: Path) -> None:
    table = load(tmp_path, SMALLEST)
    assert table == load(tmp_path, SMALLEST + "declared: {}\ncompare: ~\n")
    preset = "title: t\nsource: s\nrows: [{name: a}]\ndeclared: {model: {preset: gpt2-small, positions: 1024}}\n"
    shape = load(tmp_path, preset).declared.shape
    assert parameters(shape) == 124_439_808  # GPT-2 small as published
    given = "{family: llama, layers: 32, width: 4096, heads: 32, kv_heads: 8, ffn_width: 14336, vocab_size: 131072}"
    shape = load(tmp_path, SMALLEST + f"declared: {{model: {given}}}\n").declared.shape
    assert parameters(shape) == 8_053_329_920


def test_every_key_is_documented() -> None:
    """A reader finds each key that needs words in the schema; names that speak for themselves need none."""
    plain = {"title", "source", "name", "note", "notes", "rows", "declared", "model", "optimizer", "devices", "dtype"}
    plain |= {"layers", "width", "heads", "ffn_width", "sequence_length", "peak_flops_per_s", "steps", "mfu_percent"}
    plain |= {"fused", "gradient_norm", "memory_bandwidth_bytes_per_s", "preset"}

    for section in _AuditSection.__subclasses__():
        for name, field in section.model_fields.items():
            assert field.description or name in plain, f"{section.__name__}.{name}"


@pytest.mark.parametrize(("text", "said"), [
    ("", "not a mapping; a published table has at least title, source and rows"),
    ("- a\n", "not a mapping"),
    ("title: t\nsource: s\n", "table.yaml:1: rows: this key is required"),
    ("title: t\nsource: s\nrows: []\n", "table.yaml:3: rows: give at least one"),
    *((f"{SMALLEST[:-10]}{row}\n{more}", said) for row, more, said in (
        ("{name: a, tokens_per_s: fast}", "", "table.yaml:4: rows[0].tokens_per_s: 'fast' is not a"),
        ("{name: a, colour: 5}", "", "rows[0].colour: unknown key; allowed: name, kind, data"),
        ("{name: a, tokens_per_sec: 5}", "", "did you mean 'tokens_per_s'?"),
        ("{name: a, batch_size: 0}", "", "rows[0].batch_size: must be greater than"),
        ("{name: a, duration: 3 weeks}", "", "rows[0].duration: '3 weeks' is not a duration"),
        ("{name: a, step_ms: [1]}", "", "rows[0].step_ms: must be a figure"),
        ("{name: a, data: fst}", "isolated_ms_per_sample: {fast: 1.0}\n",
         "rows[0].data: no key of isolated_ms_per_sample is 'fst'; did you mean 'fast'? allowed: fast"),
    )),
    *((f"{SMALLEST}{more}\n", said) for more, said in (
        ("  - {name: a}", "table.yaml:5: rows[1].name: another row is called 'a'"),
        ("compare: [[a, b]]", "compare[0]: no row 'b'; allowed: row names"),
        ("compare: [[a, a]]", "compare[0]: 'a' is compared with itself"),
        ("compare: [[a]]", "compare[0]: must be a pair of row names: [baseline, candidate]"),
        ("isolated_ms_per_sample: {fast: -1}", "isolated_ms_per_sample.fast: '-1' is not a figure"),
        ("noise: {fraction: 3, source: s}", "noise.fraction: must be a fraction or a range"),
        ("noise: {fraction: [0.03, 0.01], source: s}", "noise.fraction: must be a fraction or a range"),
        ("declared: {model: {layers: 2}}", "declared.model: family, width, heads, ffn_width, vocab_size missing"),
        ("declared: {model: {preset: gpt3}}", "declared.model.preset: unknown preset 'gpt3'"),
        ("declared: {model: {preset: gpt2-tiny}}", "declared.model: vocab_size missing"),
        ("declared: {model: {preset: llama-8b, heads: 3}}", "4096 is not a multiple of model.heads (3)"),
        ("declared: {peak_flops_per_s: -1}", "declared.peak_flops_per_s: must be greater than or equal to 1"),
        ("declared: {peak_flops_per_s: .inf}", "declared.peak_flops_per_s: not a readable value"),
        ("title: again", "table.yaml:5: title: duplicate key (lines 1 and 5)"),
        ("rows", "not valid YAML"),
        ("noise: !!python/name:os.system x", "is not allowed"),
    )),
])  # fmt: skip
def test_what_is_wrong_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert said in message
    assert message.startswith(str(tmp_path / "table.yaml"))
    assert "\n" not in message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_published(tmp_path / "none.yaml")
    with pytest.raises(InputError, match=r"is a directory; give a published table"):
        load_published(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        load_published(tmp_path / "bytes.yaml")
