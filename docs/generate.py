"""Stages the documentation site: ``python -m docs.generate FOLDER`` (called by ``make docs``).

The staged folder holds three kinds of pages:
- the pages of docs/, as they are;
- the reference pages, each a short page of docs/reference/ with its generated part appended;
- pages of other folders that the site shows (folder READMEs, results/reference), under the paths of ELSEWHERE.

Links follow the pages. A link to a file that is no page of the site becomes the file's path in code type. A picture
of a study gets the narrow drawing of the study's summary.html beside it, for phones.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# Folder of pages in the repository -> its place in the site.
ELSEWHERE = {
    "results/reference": "evidence",
    "harness": "internals/harness",
    "trainer": "internals/trainer",
    "examples": "guides/examples",
}
PICTURES = (".png", ".svg")
STYLE = "site.css"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1`*\s*$", re.DOTALL | re.MULTILINE)
NARROW = re.compile(r'<svg class="on-narrow".*?</svg>', re.DOTALL)
HELP_COLUMNS = "88"  # width of usage lines


def command_line() -> str:
    """Return every command with its usage and arguments, read from the parser."""
    os.environ["COLUMNS"] = HELP_COLUMNS
    from harness.cli import _parser

    parser = _parser()
    parser.get_default("everything")()
    return "\n".join([*_groups(), *_command(parser, 2)])


def _groups() -> Iterator[str]:
    """Yield the commands by group, each with a link to its section."""
    from harness.cli import GROUPS

    for title, commands in GROUPS.items():
        yield f"**{title}**\n"
        rows = [(f"[{name}](#harness-{name})", _text(command.help)) for name, command in commands.items()]
        yield from _table(("command", "what it does"), rows)


def _command(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    actions = [action for action in parser._actions if not isinstance(action, argparse._SubParsersAction)]
    yield f"{'#' * level} {parser.prog}\n"
    if parser.description:
        yield f"{parser.description}\n"
    usage = parser.format_usage().rstrip().removeprefix("usage: ").replace("\n" + " " * len("usage: "), "\n")
    yield f"```text\n{usage}\n```\n"
    formatter = parser._get_formatter()
    rows = [
        (
            _code(formatter._format_action_invocation(action)),
            _text(formatter._expand_help(action) if action.help else ""),
        )
        for action in actions
        if action.help is not argparse.SUPPRESS and action.dest != "help"
    ]
    yield from _table(("argument", "meaning"), rows)
    if parser.epilog:
        yield f"\n{_text(parser.epilog)}\n"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            described = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, inner in action.choices.items():
                inner.description = inner.description or _sentence(described.get(name, ""))
                yield from _command(inner, level + (parser.prog != "harness"))


def scenario_keys() -> str:
    """Return the keys of scenario files, from the models' JSON Schema."""
    from harness.scenario.schema import scenario_schema

    schema: dict[str, Any] = dict(scenario_schema())
    definitions: dict[str, Any] = schema["$defs"]
    lines = ["## Keys of a scenario\n", *_keys(definitions, "Scenario")]
    lines += ["\n## Keys of a scenario of commands\n", *_keys(definitions, "CommandScenario")]
    sections: dict[str, list[tuple[str, Any]]] = {}
    for key, schema in definitions["Overrides"]["properties"].items():
        sections.setdefault(key.partition(".")[0] if "." in key else "", []).append((key, schema))
    single = sections.pop("")
    inner = {key for name in sections for key, _ in sections[name]} | set(sections)
    rows = [_key_row(key, schema, definitions) for key, schema in single if key not in sections]
    lines += ["\n## Keys of `base` and of an arm\n", *_table(("key", "allowed", "meaning"), rows)]
    for name, keys in sections.items():
        parents = {key for key in inner if any(other.startswith(f"{key}.") for other in inner)}
        rows = [_key_row(key, schema, definitions) for key, schema in keys if key not in parents]
        lines += [f"\n## `{name}`\n", *_table(("key", "allowed", "meaning"), rows)]
    return "\n".join(lines)


def _keys(definitions: dict[str, Any], name: str, prefix: str = "") -> Iterator[str]:
    """Yield a table of one model, with the keys of the models inside it."""
    rows = []
    for key, schema in definitions[name]["properties"].items():
        rows.append(_key_row(f"{prefix}{key}", schema, definitions))
        if (model := _model(schema)) in definitions and "properties" in definitions[model] and model != "Overrides":
            inner = definitions[model]["properties"].items()
            rows += [_key_row(f"{prefix}{key}.{name}", value, definitions) for name, value in inner]
    yield from _table(("key", "allowed", "meaning"), rows)


def _model(schema: dict[str, Any]) -> str:
    """Return the name of the model that ``schema`` refers to, or ""."""
    for found in (schema, *schema.get("anyOf", ())):
        if "$ref" in found:
            return str(found["$ref"]).rpartition("/")[2]
    return ""


def _key_row(key: str, schema: dict[str, Any], definitions: dict[str, Any]) -> tuple[str, str, str]:
    given = schema.get("default")
    default = "" if given is None or isinstance(given, dict | list) else f"; default {_code(json.dumps(given))}"
    text = schema.get("description") or definitions.get(_model(schema), {}).get("description", "")
    return _code(key), _allowed(schema) + default, _text(text)


def _allowed(schema: dict[str, Any]) -> str:
    """Return what a key may be, as text."""
    if "enum" in schema:
        return ", ".join(_code(json.dumps(value).strip('"')) for value in schema["enum"])
    if "const" in schema:
        return _code(json.dumps(schema["const"]).strip('"'))
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return ", ".join(dict.fromkeys(_allowed(option) for option in options))
    if "$ref" in schema:
        return {"Overrides": "keys of `base`", "Json": "any"}.get(_model(schema), "a section")
    kind = str(schema.get("type", "any"))
    least, most = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    most = schema.get("exclusiveMaximum", most)
    if kind in ("integer", "number") and (least is not None or most is not None):
        bounds = [f"from {least:g}" if "minimum" in schema else f"above {least:g}"] if least is not None else []
        bounds += [f"to {most:g}" if "maximum" in schema else f"below {most:g}"] if most is not None else []
        return f"{kind} {' '.join(bounds)}"
    if kind == "array":
        return f"list of {_allowed(schema.get('items', {}))}"
    return {"null": "null", "object": "mapping"}.get(kind, kind)


def columns() -> str:
    """Return the tables' columns, as ``harness schema --columns`` prints them, without their title."""
    from harness.study.contract import column_reference

    return column_reference().partition("\n")[2].lstrip()


def summary_json() -> str:
    """Return every key of the stored quickstart study's summary.json, with its type and an example."""
    content = json.loads((ROOT / "results" / "reference" / "quickstart" / "summary.json").read_text())
    rows = [(_code(key), kind, example and _code(example)) for key, (kind, example) in summary_keys(content).items()]
    rows.sort()
    return "\n".join(["## Every key\n", *_table(("key", "type", "example"), rows)])


def summary_keys(value: Any, path: str = "") -> dict[str, tuple[str, str]]:
    """Return the keys below ``value`` with type and example. Names that a user chose become ``NAME``."""
    if isinstance(value, dict) and set(value) == {"median", "ci_low", "ci_high", "n"}:
        return {path: ("estimate", f"{value['median']:.4g}")}
    if isinstance(value, dict) and value:
        of_names = path in ("arms", "operators", "environment") or path.endswith(("_ms", "ledger", "launch_bound"))
        found: dict[str, tuple[str, str]] = {}
        for key, inner in value.items():
            name = "NAME" if of_names else key
            for inner_path, row in summary_keys(inner, f"{path}.{name}" if path else name).items():
                if found.get(inner_path, ("null", ""))[0] in ("null", "list"):
                    found[inner_path] = row
        return found
    if isinstance(value, list) and value:
        found = {}
        for inner in value:
            found |= {
                key: row
                for key, row in summary_keys(inner, f"{path}[]").items()
                if row[0] != "null" or key not in found
            }
        return found
    kinds = {
        "bool": "boolean",
        "int": "integer",
        "float": "number",
        "str": "text",
        "NoneType": "null",
        "dict": "object",
    }
    kind = kinds.get(type(value).__name__, type(value).__name__)
    text = f"{value:.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
    return {path: (kind, "" if value in (None, [], {}) else text[:60])}


def exit_codes() -> str:
    """Return the table of exit codes."""
    from harness.commands.exit_codes import MEANINGS

    rows = [(_code(str(code)), _text(text)) for code, text in MEANINGS.items()]
    return "\n".join(_table(("code", "meaning"), rows))


def python_api() -> str:
    """Return the public names of ``harness`` with signatures and docstrings. Names of absent packages are listed."""
    import harness

    lines: list[str] = []
    seen = set(harness.__all__)
    for name in harness.__all__:
        if name.startswith("_"):
            continue
        lines.append(f"## harness.{name}\n")
        try:
            found = getattr(harness, name)
        except ImportError as error:
            lines.append(f"Needs a package that is not installed here: {error.name}.\n")
            continue
        lines += _documented(name, found, 3)
        for record in _records(found, seen):
            lines += [f"### {record.__name__}\n", *_documented(record.__name__, record, 4)]
    return "\n".join(lines)


def _records(found: Any, seen: set[str]) -> Iterator[type]:
    """Yield the classes of the same module that annotations of ``found`` and its members name."""
    module = inspect.getmodule(inspect.unwrap(found))
    functions = [found] if inspect.isfunction(found) else [function for _, function in _members(found)]
    for name in re.findall(r"\w+", " ".join(str(inspect.signature(one).return_annotation) for one in functions)):
        record = getattr(module, name, None)
        if name not in seen and inspect.isclass(record) and record.__module__ == getattr(module, "__name__", ""):
            seen.add(name)
            yield record
            yield from _records(record, seen)


def _members(found: type) -> Iterator[tuple[str, Any]]:
    """Yield the public functions and properties that a class defines and documents itself."""
    for key, member in vars(found).items():
        function = getattr(member, "func", getattr(member, "fget", member))
        if not key.startswith("_") and inspect.isfunction(function) and function.__doc__:
            yield key, function


def _documented(name: str, found: Any, level: int) -> Iterator[str]:
    yield f"```python\n{name}{_signature(found)}\n```\n"
    if text := inspect.getdoc(found):
        yield f"{_docstring(text)}\n"
    if inspect.isclass(found):
        for key, function in _members(found):
            shown = _signature(function) if vars(found)[key] is function else ""
            yield f"{'#' * level} `{name}.{key}`\n"
            if shown:
                yield f"```python\n{key}{shown}\n```\n"
            yield f"{_docstring(inspect.getdoc(function) or '')}\n"


def _signature(found: Any) -> str:
    """Return a signature with its annotations as they are written."""
    try:
        text = str(inspect.signature(found))
    except (TypeError, ValueError):
        return ""
    return re.sub(r"""(: |-> )(['"])(.*?)\2""", r"\1\3", text).replace("(self, ", "(").replace("(self)", "()")


def sayings() -> str:
    """Return every kind that a report, a regression check or an audit can state, with an example sentence."""
    from docs.kinds import SECTIONS
    from harness.audit.text import GAINS, REASONS, STATUS
    from harness.judge.doubts import RULES

    lines: list[str] = []
    for section in SECTIONS:
        lines.append(f"\n## {section.title}\n")
        examples = {kind: _text(section.render(kind)) for kind in section.kinds}
        if section.title == "Doubts":
            head: tuple[str, ...] = ("doubt", "when", "example", "what it bars", "remedy")
            rows = [(one.kind, _text(one.applies), examples[one.kind], one.bars, one.remedy or "") for one in RULES]
            lines += _table(head, rows)
        else:
            lines += _table(("kind", "example"), [*examples.items()])
    lines.append("\n## Why a regression check is undecided\n")
    lines += _table(("cause", "example", "what would decide it"), [*_regression_causes()])
    lines.append("\n## What an audit says of a row\n")
    lines += _table(("status", "words"), [*STATUS.items()])
    lines.append("\n## What an audit cannot check, and why\n")
    lines += _table(("reason", "words"), [(kind, _text(text)) for kind, text in REASONS.items()])
    lines.append("\n## What an audit says of a gain\n")
    lines += _table(("verdict", "words"), [(kind, _text(texts[1])) for kind, texts in GAINS.items()])
    return "\n".join(lines)


def _regression_causes() -> Iterator[tuple[str, str, str]]:
    """Yield each cause of an undecided regression check, with the words for an example record."""
    from harness.explain.statistics import Estimate
    from harness.judge.confounds import Confound
    from harness.judge.doubts import doubt
    from harness.regress import text
    from harness.regress.decision import Decision, StateComparison, WhyUndecided
    from harness.regress.series import BetweenDays

    change = Estimate(0.021, 0.004, 0.038, 2)
    decision = Decision("undecided", 0.02, change, 0.95, floor=0.03, between=BetweenDays(0.04, 1, known=False))
    details = {
        "failed runs": "head/text/0 failed (exit code 1)",
        "code changed": "src",
        "no baseline": "no baseline of quickstart",
    }
    sides = ("base", "head")
    for cause in (*text.CAUSES, "no core"):  # and one of the doubts
        example = StateComparison(
            "text",
            *sides,
            blocks=2,
            step=replace(decision, outcome="same"),
            total=decision,
            missing=WhyUndecided("failed runs", (details.get(cause, "data.batch_size is 8 against 16"),), (2048, 4096)),
            other_work=Confound("other batches", sides, "positions", (2048, 1630)),
            used_lead=Confound("lead", sides, values=(0.0, 0.08)),
            doubts=(doubt("no core", "text", share=0.2),),
        )
        words = text._filled(cause, decision, example)
        yield cause, _text(words.cause), _text(words.remedy)


GENERATED: dict[str, Callable[[], str]] = {
    "reference/doubts.md": sayings,
    "reference/command-line.md": command_line,
    "reference/scenario-keys.md": scenario_keys,
    "reference/columns.md": columns,
    "reference/summary-json.md": summary_json,
    "reference/exit-codes.md": exit_codes,
    "reference/python.md": python_api,
}


def pages() -> dict[Path, str]:
    """Return every page of the site: the file in the repository -> its path in the site."""
    found = {path: str(path.relative_to(DOCS)) for path in sorted(DOCS.rglob("*.md"))}
    for folder, place in ELSEWHERE.items():
        for path in sorted((ROOT / folder).rglob("*.md")):
            found[path] = f"{place}/{path.relative_to(ROOT / folder)}"
    return found


def site_links(text: str, source: Path, place: str, sites: dict[Path, str]) -> tuple[str, dict[Path, str]]:
    """Return ``text`` with links that hold in the site, and the pictures that it shows: file -> path in the site."""
    pictures: dict[Path, str] = {}

    def link(match: re.Match[str]) -> str:
        mark, label, target = match.groups()
        path, hash_mark, anchor = target.partition("#")
        if "://" in path or not path:
            return match[0]
        file = Path(os.path.normpath(source.parent / path))
        file = next((inner for inner in (file / "README.md",) if inner in sites), file)
        if file.suffix in PICTURES and file.is_file():
            pictures[file] = os.path.normpath(Path(place).parent / path)
            target = path if DOCS in file.parents else _relative(_of(file), place)
            return _picture(label, target) if mark and narrow_drawing(file) else f"{mark}[{label}]({target})"
        if file not in sites:
            return f"{label} (`{file.relative_to(ROOT)}`)"
        return f"{mark}[{label}]({_relative(sites[file], place)}{hash_mark}{anchor})"

    def _of(file: Path) -> str:
        for folder, inner in ELSEWHERE.items():
            if ROOT / folder in file.parents:
                pictures[file] = f"{inner}/{file.relative_to(ROOT / folder)}"
        return pictures[file]

    parts: list[str] = []
    end = 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(link, text[end : fence.start()]), fence[0]]
        end = fence.end()
    parts.append(LINK.sub(link, text[end:]))
    return "".join(parts), pictures


def narrow_drawing(picture: Path) -> str:
    """Return the narrow drawing (SVG) of a study's picture, as its summary.html has it; "" if there is none."""
    page = picture.parents[1] / "summary.html"
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    own = f'id="{picture.stem}-narrow-'
    return next((found[0] for found in NARROW.finditer(text) if own in found[0]), "")


def _picture(label: str, target: str) -> str:
    from harness.show.drawing import picture_link

    return picture_link(label, target)


def stage(out: Path) -> None:
    """Write the whole site's Markdown below ``out``, which is emptied first."""
    from harness.show.drawing import narrow_name, themed_file

    shutil.rmtree(out, ignore_errors=True)
    sites = pages()
    for source, place in sites.items():
        text = source.read_text(encoding="utf-8")
        if place in GENERATED:
            text = f"{text.rstrip()}\n\n{GENERATED[place]()}\n"
        text, pictures = site_links(text, source, place, sites)
        target = out / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        for picture, inner in pictures.items():
            (out / inner).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(picture, out / inner)
            if drawing := narrow_drawing(picture):
                file = out / inner
                file.with_name(narrow_name(file.name)).write_text(themed_file(drawing), encoding="utf-8")
    shutil.copyfile(DOCS / STYLE, out / STYLE)


def _relative(target: str, place: str) -> str:
    return os.path.relpath(target, Path(place).parent)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    if rows:
        yield f"| {' | '.join(head)} |\n|{' --- |' * len(head)}"
        yield from (f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows)
        yield ""


def _code(text: str) -> str:
    if not set(text) & set("`|") and text:
        return f"`{text}`"
    return f"<code>{_escaped(text)}</code>"


def _escaped(text: str) -> str:
    return (
        text.replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace("*", "&#42;")
        .replace("_", "&#95;")
        .replace("[", "&#91;")
    )


def _text(text: str) -> str:
    """Return prose for a table cell: one line, no markup but code in backticks."""
    parts = re.split(r"(``[^`]+``|`[^`]+`)", " ".join(text.split()))
    return "".join(_code(part.strip("`")) if part.startswith("`") else _escaped(part) for part in parts)


def _docstring(text: str) -> str:
    """Return a docstring as Markdown: ``:func:`name``` becomes code; indented blocks stay code."""
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m docs.generate FOLDER")
    stage(Path(sys.argv[1]))
