"""What YAML means in a scenario, as a table: another library or version of YAML must change no file silently."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.scenario import yaml as yaml_module
from harness.scenario.yaml import parse_document
from trainer.devices.profiles import read_yaml
from trainer.errors import InputError

ROOT = Path(__file__).parents[3]
SHIPPED = sorted([*ROOT.glob("scenarios/*.yaml"), *ROOT.glob("profiles/*/*.yaml")])

# Beside each: what YAML 1.2 or another library reads instead.
MEANS: dict[str, Any] = {
    "on": True,  # 1.2: text
    "Off": False,  # 1.2: text
    "yes": True,  # 1.2: text
    "NO": False,  # 1.2: text
    "y": "y",  # ruamel.yaml for 1.1: true
    "n": "n",  # ruamel.yaml for 1.1: false
    "true": True,
    "~": None,
    "NULL": None,
    "": None,
    "1e6": 1e6,  # PyYAML alone: text
    "1e-3": 1e-3,  # PyYAML alone: text
    "-2E+3": -2000.0,  # PyYAML alone: text
    "1.5e+3": 1500.0,
    "1e": "1e",
    "1_000": 1000,  # 1.2: text
    "010": 8,  # 1.2: 10
    "0o10": "0o10",  # 1.2: 8
    "08": "08",  # 1.2: 8
    "0x1F": 31,
    "0b11": 3,  # 1.2: text
    "1:30": 90,  # 1.2: text
    "+.5": "+.5",  # 1.2: 0.5
    "2026-11-21": "2026-11-21",  # PyYAML and ruamel.yaml: a date
    "2026-13-01": "2026-13-01",
    "'1'": "1",
    "!!str 3": "3",
    "!!float 3": 3.0,
    "|\n  two\n  lines": "two\nlines\n",
    "{<<: {b: 1}, <<: {c: 2}}": {"b": 1, "c": 2},  # ruamel.yaml: refused
    "{b: 3, <<: [{b: 1, c: 1}, {c: 2, d: 2}]}": {"b": 3, "c": 1, "d": 2},
    "[&x {b: 1}, *x]": [{"b": 1}, {"b": 1}],
}


@pytest.mark.parametrize("text", MEANS)
def test_a_value_means(text: str) -> None:
    data = parse_document(f"a: {text}\n", "x").data
    assert data == {"a": MEANS[text]}
    assert type(data["a"]) is type(MEANS[text])


def test_a_tab_may_follow_a_colon() -> None:
    assert parse_document("a:\t1\n", "x").data == {"a": 1}  # ruamel.yaml refuses it


@pytest.mark.parametrize("text", [".inf", "-.INF", ".nan", "1e999", "=", "<<", "!foo 3", "!!binary aGk=", "!!set {x}"])
def test_a_value_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^x:1: a: "):
        parse_document(f"a: {text}\n", "x")


def test_a_value_is_marked_where_it_is_written_and_one_of_an_alias_where_its_anchor_is() -> None:
    document = parse_document("a: &x\n  b: 1\nc:\n  - *x\n  - {<<: *x, d: 2}\n", "x")
    lines = {path: mark.line for path, mark in document.marks.items()}
    assert (lines["a",], lines["a", "b"], lines["c",]) == (1, 2, 3)
    assert (lines["c", 0, "b"], lines["c", 1, "b"], lines["c", 1, "d"]) == (2, 2, 5)


def test_a_large_file_is_read_and_a_larger_one_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_module, "MAX_YAML_VALUES", 401)  # instead of 200,000, which take seconds
    row = "- {a: 1, b: 2.5, c: true}\n"  # four values each, the mapping among them, and the list itself
    fits = 100
    assert len(parse_document(row * fits, "x").data) == fits
    with pytest.raises(InputError, match=rf"^x:{fits + 1}: .*more than 401 values"):
        parse_document(row * (fits + 1), "x")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_file_means_what_plain_pyyaml_reads(path: Path) -> None:
    """Apart from numbers such as 1e6, which PyYAML reads as text, and dates, which stay text here."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items()}
        if isinstance(value, list):
            return [plain(one) for one in value]
        if isinstance(value, str):
            try:
                return float(value)
            except ValueError:
                return value
        return value if value is None or isinstance(value, bool | int | float) else str(value)

    text = path.read_text()
    ours = parse_document(text, str(path)).data
    assert plain(ours) == plain(yaml.safe_load(text))
    if path.parent.name == "devices":
        assert plain(read_yaml(path)) == plain(ours)
    assert all(math.isfinite(value) for value in _numbers(ours))


def _numbers(value: Any) -> list[float]:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [number for one in inner for number in _numbers(one)]
    return [value] if isinstance(value, int | float) else []
