"""Start of every Python process under ``harness exec``: watch for the import of torch, and load nothing else.

First on PYTHONPATH, it then runs the ``sitecustomize`` that would have run without it (Debian ships one). Any error
here is caught. All names begin with an underscore or are deleted, so that the program never finds them by accident.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_FOLDER = os.environ.get("HARNESS_ATTACH")


class _Watch:
    """Meta path finder that loads the agent once torch has been imported. Until then it only compares names."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._asking: set[str] = set()  # prevents two finders from asking each other for ever

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name != "torch" or name in self._asking:
            return None
        self._asking.add(name)
        try:
            spec = None
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                if find is not None and find != self.find_spec:
                    spec = find(name, path, target)
                    if spec is not None:
                        break
            if spec is not None and spec.loader is not None:
                self._follow(spec.loader)
            return spec
        except Exception:
            return None
        finally:
            self._asking.discard(name)

    def _follow(self, loader: object) -> None:
        run = loader.exec_module  # type: ignore[attr-defined]

        def exec_module(module: object) -> None:
            run(module)
            try:
                sys.meta_path.remove(self)  # type: ignore[arg-type]
            except ValueError:
                pass
            try:
                _load(self._folder)
            except Exception as error:
                _say(f"harness exec: not attached: {type(error).__name__}: {error}")

        loader.exec_module = exec_module  # type: ignore[attr-defined]


def _load(folder: str) -> None:
    """Load the agent as ``_harness_agent`` and start to record into ``folder``. Do nothing if it is loaded already."""
    if "_harness_agent" in sys.modules:
        return
    from importlib.util import module_from_spec, spec_from_file_location

    place = os.path.join(os.path.dirname(_HERE), "agent")
    spec = spec_from_file_location(
        "_harness_agent", os.path.join(place, "__init__.py"), submodule_search_locations=[place]
    )
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["_harness_agent"] = module
    spec.loader.exec_module(module)
    module.begin(folder)


def _say(line: str) -> None:
    try:
        sys.stderr.write(line + "\n")
    except Exception:
        pass


def _chain() -> None:
    """Run the next ``sitecustomize`` on the path under its own name, as if this file did not exist."""
    shim = sys.modules.pop("sitecustomize")
    kept = list(sys.path)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    try:
        import sitecustomize  # type: ignore[import-not-found] # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", shim)  # the importing code expects this entry
        kept = [entry for entry in kept if os.path.abspath(entry or ".") != _HERE]
        sys.path[:] = kept + [entry for entry in sys.path if entry not in kept]


try:
    if _FOLDER and os.path.isdir(_FOLDER) and not any(type(finder).__name__ == "_Watch" for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch(_FOLDER))  # type: ignore[arg-type]
except Exception as _error:
    _say(f"harness exec: not attached: {_error}")
_chain()
