"""``python -m tests.campaigns NAME [ARGUMENT ...]``: run one campaign with its arguments; without a name, list all."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent


def names() -> list[str]:
    """Return the campaigns: packages with a ``__main__`` module, and modules of a package that run by themselves."""
    packages = [path.parent.name for path in HERE.glob("*/__main__.py")]
    modules = [f"{path.parent.name}.{path.stem}" for path in HERE.glob("*/*.py") if not path.stem.startswith("__")]
    return sorted([*packages, *(name for name in modules if 'if __name__ == "__main__":' in source(name))])


def source(name: str) -> str:
    return (HERE / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Run the campaign that the first word names. Return 2 if there is none of that name."""
    found = names()
    if not arguments or arguments[0] not in found:
        print("python -m tests.campaigns NAME [ARGUMENT ...]; NAME:", *found, sep="\n  ")
        return 2
    name, *rest = arguments
    sys.argv = [f"python -m tests.campaigns {name}", *rest]
    runpy.run_module(f"{__package__}.{name}", run_name="__main__", alter_sys=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
