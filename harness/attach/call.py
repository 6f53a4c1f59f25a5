"""Script that calls a training function: ``call.py MODULE:FUNCTION '{"argument": value}'``; for ``loop`` in scenarios.

The process is the user's program: no import of the harness, and the working directory comes first on the path.
"""

import importlib
import inspect
import json
import sys
from pathlib import Path


def main() -> None:
    """Call the function ``sys.argv[1]`` with the arguments ``sys.argv[2]`` (JSON), or exit with a message."""
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    module, _, function = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    target = getattr(importlib.import_module(module), function, None)
    if not callable(target):
        sys.exit(f"loop: {name}: {module} has no function {function}")
    try:
        inspect.signature(target).bind(**arguments)
    except TypeError as error:
        sys.exit(f"loop: {name}{inspect.signature(target)} cannot be called: {error}")
    sys.argv[:] = [str(getattr(sys.modules[module], "__file__", module))]
    target(**arguments)


if __name__ == "__main__":
    main()
