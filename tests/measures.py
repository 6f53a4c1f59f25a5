"""``python -m tests.measures``: print the measures of the house as Markdown, counted from the source files.

Two measures are printed elsewhere: the CPU time of the tests by ``python -m tests``, and figures that moved by
``python -m tests.figures``.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.sources import FIELDS_MAX, FUNCTION_LINES_MAX, MODULES, ROOT, nodes, reached, sizes

TESTS = ROOT / "tests"
CAMPAIGNS = TESTS / "campaigns"
# Where a user's command, and the page, begin.
STARTS = {"run": "harness.commands.run", "exec": "harness.commands.exec", "the page": "harness.show.build"}
# Packages that may be imported inside functions: slow to import, or of an extra (pyproject.toml).
HEAVY = {"torch", "transformers", "matplotlib", "pyarrow"}
OPTIONAL = {
    *("viztracer", "perfetto", "shtab", "mlflow", "wandb", "trackio", "pyspark", "pandas", "tiktoken", "gigatoken"),
    *("fastokens", "optuna", "accelerate", "lightning"),
}
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
IMPORTS = (ast.Import, ast.ImportFrom)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def code_lines(text: str) -> int:
    """Count the lines of a module that are neither blank, nor comment, nor docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, *DEFINITIONS)) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def imported_inside(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield each package that a function imports, heavy and optional ones aside."""
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    imports = (node for function in functions for node in ast.walk(function) if isinstance(node, IMPORTS))
    for node in dict.fromkeys(imports):  # once, also in a nested function
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        yield from {name.partition(".")[0] for name in names} - HEAVY - OPTIONAL


def folder_of(path: Path) -> str:
    """Return the room of a file: its folder, at most two levels deep."""
    return "/".join(path.relative_to(ROOT).parts[:-1][:2])


def lines_in(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def table(heads: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> Iterator[str]:
    """Yield a Markdown table. Numbers have thousands separators and stand right."""
    yield f"| {' | '.join(heads)} |"
    yield f"| --- |{' ---: |' * (len(heads) - 1)}"
    for row in rows:
        yield f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else str(cell) for cell in row)} |"


def rooms(files: Mapping[str, Path]) -> Iterator[tuple[str, int, int, int]]:
    """Yield each room with its lines, lines of code, and files; then all together."""
    found: dict[str, tuple[int, int, int]] = {}
    for path in files.values():
        text = path.read_text(encoding="utf-8")
        lines, code, count = found.get(folder_of(path), (0, 0, 0))
        found[folder_of(path)] = lines + len(text.splitlines()), code + code_lines(text), count + 1
    yield from ((room, *counts) for room, counts in found.items())
    lines, code, count = (sum(column) for column in zip(*found.values(), strict=True))
    yield "all", lines, code, count


def measures() -> Iterator[tuple[str, int]]:
    """Yield the name and the number of each measure that is not of one room."""
    yield (
        "test lines without campaigns",
        lines_in(path for path in TESTS.rglob("*.py") if CAMPAIGNS not in path.parents),
    )
    for name, module in STARTS.items():
        yield f"modules that {name} reaches", len(reached(module))
    inside = Counter(package for module in MODULES for package in imported_inside(nodes(module)))
    ours = sum(inside[top] for top in ("harness", "trainer"))
    yield "imports inside functions: this project's own modules", ours
    yield "imports inside functions: other packages, neither heavy nor optional", inside.total() - ours
    found = [size for module in MODULES for size in sizes(nodes(module))]
    yield f"functions over {FUNCTION_LINES_MAX} lines", sum(size.lines > FUNCTION_LINES_MAX for size in found)
    yield f"classes over {FIELDS_MAX} fields", sum(size.fields > FIELDS_MAX for size in found)


def main() -> None:
    print("\n".join(table(("room", "lines", "of code", "files"), rooms(MODULES))))
    print()
    print("\n".join(table(("measure", "today"), measures())))


if __name__ == "__main__":
    main()
