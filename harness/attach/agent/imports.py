"""Call functions once a module has been imported, or immediately if it already is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from _harness_agent import guard


def after(name: str, action: Callable[[Any], None]) -> None:
    """Call ``action(module)`` as soon as the module ``name`` is imported; at once if it already is."""
    module = sys.modules.get(name)
    if module is not None:
        guard.carefully(action, module)
        return
    _finder.wanted.setdefault(name, []).append(action)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder:
    def __init__(self) -> None:
        self.wanted: dict[str, list[Callable[[Any], None]]] = {}
        self._asking: set[str] = set()  # prevents two finders from asking each other for ever

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.wanted or name in self._asking:
            return None
        self._asking.add(name)
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find is not None and finder is not self else None
                if spec is not None:
                    if spec.loader is not None:
                        self._follow(name, spec.loader)
                    return spec
        finally:
            self._asking.discard(name)
        return None

    def _follow(self, name: str, loader: Any) -> None:
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            for action in self.wanted.pop(name, []):
                guard.carefully(action, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader with slots cannot be changed
            pass


_finder = _Finder()
