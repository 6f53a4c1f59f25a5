"""Run ``python -m harness``. Unlike for the command ``harness``, Python then searches the current folder first.

The user's folder may hold its own trainer.py or profiles/, but this package must import the modules beside it.
``spark-submit`` runs this file by its path: Python then searches this folder first.
"""

import os
import sys

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_FIRST = os.path.abspath(sys.path[0] or ".") if sys.path else ""
if os.path.dirname(os.path.abspath(__file__)) == _FIRST or _FIRST == os.getcwd() != _HERE:
    sys.path[0:1] = []
    sys.path.append(_HERE)

from harness.cli import main  # noqa: E402

if __name__ == "__main__":
    raise SystemExit(main())
