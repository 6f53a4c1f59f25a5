"""python -m tests.timeline_check TIMELINE [--perfetto DIR]: 0 where everything holds, 1 where something does not."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.timeline_check import perfetto
from tests.timeline_check.check import Result, check, is_chrome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.timeline_check", description=__doc__)
    parser.add_argument("timeline", type=Path, metavar="TIMELINE", help="a timeline.json.gz")
    parser.add_argument("--perfetto", type=Path, metavar="DIR", help="ask the real Perfetto too; results go here")
    arguments = parser.parse_args()
    content = arguments.timeline.read_bytes()
    result = check(content) if is_chrome(content) else Result()
    found = {"timeline": arguments.timeline.name, "checked": result.figures, "problems": result.problems}
    if arguments.perfetto is not None:
        if (why := perfetto.missing()) is not None:
            parser.error(why)
        arguments.perfetto.mkdir(parents=True, exist_ok=True)
        with perfetto.Perfetto(arguments.timeline) as opened:
            found["perfetto"] = perfetto.ask(opened)
            if is_chrome(content):
                found["compared"] = perfetto.compare(opened, arguments.timeline)
            opened.pictures(arguments.perfetto)
        found["problems"] += perfetto.problems(found["perfetto"], found.get("compared"))
        (arguments.perfetto / "perfetto.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    for problem in found["problems"]:
        print(f"problem: {problem}", file=sys.stderr)
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
