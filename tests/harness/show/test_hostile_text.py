"""What came from a file stays text: in markdown, in HTML, in the timeline and on a terminal."""

from __future__ import annotations

import gzip
import json
import unicodedata
from collections import Counter
from dataclasses import replace
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from harness.show.tables import Markdown, code, fenced, safe, table
from harness.show.timeline.model import Counter as Values
from harness.show.timeline.model import Process, Slice, Thread, Trace, resolve
from harness.study.store import StudyFolder
from tests.commands import harness
from tests.harness.show.test_html import Tags
from tests.harness.synthetic import Arm, build, write
from trainer.errors import visible

PIECES = (
    "\x1b[2J", "\x1b]8;;http://evil\x07", "\x9b31m", "\r", "\n", "\n\n# heading\n\n", "\u202e", "\u2028", "\0",
    "\ud800",
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<!-- ", "&lt;b&gt;", "[x](http://evil)",
    "![x](//evil)",
    "[x]: http://evil", "<http://evil>", "](http://evil)", "|", "\\", "`", "```", "~~~", "~~x~~", "**", "_", "$$", "# ",
    "> ", "- ", "1. ", "---", "===", ":--", " ", "a", "b", "7", ".", "straße",
)  # fmt: skip
hostile = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
GITHUB = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
INLINE = {"text", "text_special", "softbreak"}


def tokens(markdown: str) -> list[Token]:
    found = GITHUB.parse(markdown)
    return [*found, *(child for one in found for child in one.children or ())]


def kinds(markdown: str) -> Counter[str]:
    """How many of everything but text there are in a page: headings, links, cells, emphasis and so on."""
    return Counter(one.type for one in tokens(markdown) if one.type not in INLINE)


def steering(text: str) -> set[str]:
    """The characters, besides ends of lines, that a terminal or a browser would obey rather than show."""
    return {one for one in text if one != "\n" and unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp")} | (
        set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f") & set(text)
    )


@given(hostile)
@example("___\x1b[2J__")
def test_text_is_one_line_of_text_wherever_it_stands(text: str) -> None:
    line = safe(text)
    assert not steering(line)
    assert "\n" not in line
    assert kinds(f"Some {line} text.") == kinds("Some text.")
    assert kinds(f"x\n\n{line}x\n") <= kinds("x\n\nx\n")
    assert kinds(f"- **{line}x**: x\n- {line}x") == kinds("- **x**: x\n- x")
    assert kinds(f"## x {line}") == kinds("## x x")


@given(hostile, hostile)
def test_cells_hold_text_and_code_and_keep_to_their_columns(text: str, other: str) -> None:
    page = table(["a", text], [[other, text], [code(text), Markdown("**x**")]])
    assert not steering(page)
    found = kinds(page)
    assert (found["tr_open"], found["th_open"], found["td_open"]) == (3, 2, 4)
    assert not set(found) & {"html_inline", "link_open", "image", "s_open"}
    assert found["strong_open"] == 1
    assert found["code_inline"] == 1


@given(hostile)
def test_a_block_of_code_ends_where_we_end_it(text: str) -> None:
    assert not steering(fenced(text))
    (block,) = GITHUB.parse(fenced(text))
    assert block.type == "fence"
    assert block.content == "".join(f"{visible(line)}\n" for line in text.split("\n"))


NAME = "".join(one for one in "".join(PIECES) if one.isprintable() and one not in "/\\")[:100]
TEXT = "".join(PIECES).replace("\ud800", "")  # no file of ours can hold that one: the next test


def study(folder: Path, name: str, text: str) -> StudyFolder:
    """A study with ``text`` wherever a file of it holds text; ``name``: in the name of an arm."""
    facts = {
        "device": f"d{text}",
        "emulated": True,
        "emulation": f"e{text}",
        "profile_reason": f"p{text}",
        "torch": text,
    }
    slow = Arm(f"a{name}", tokenize=9.0, facts=facts, environment={"torch": text, f"k{text}": text})
    fast = Arm(f"b{name}", tokenize=0.0, declared={"data.path": f"tokens{text}"}, failed_blocks=(1,), facts=facts)
    record, runs = build([slow, fast, *slow.controls("a-a")], [(slow.name, fast.name)], blocks=2)
    record = replace(
        record, question=f"q{text}", scenario=f"s{name}", notes=[f"n{text}"], interleave_reason=f"i{text}",
        command=["harness", f"c{text}"], scenario_file=f"f{text}", created_utc=f"t{text}", ended_utc=f"u{text}",
        environment={"python": f"v{text}", f"k{text}": text},
    )  # fmt: skip
    failed = replace(next(run.record for run in runs if run.steps is None), error=f"boom{text}")
    runs = [run if run.steps is not None else replace(run, record=failed) for run in runs]
    runs = [replace(run, record=replace(run.record, environment={**run.record.environment, "x": text})) for run in runs]
    result = StudyFolder(folder)
    write(result, record, runs)
    for run in runs:
        result.write_probes(run.record.arm, run.record.block, {"problems": [f"lost{text}"], "failed": [f"p{text}"]})
    return result


def tags(path: Path) -> Counter[str]:
    parser = Tags()
    parser.feed(path.read_text())
    found = Counter(tag for tag, _ in parser.found)
    for _, attributes in parser.found:
        found.update(f"{name}={value}" for name, value in attributes.items() if name in ("href", "src"))
        found.update(name for name in attributes if name.startswith("on"))
    return found


def test_a_study_full_of_it_gives_the_page_of_a_study_without(tmp_path: Path) -> None:
    plain, full = study(tmp_path / "plain", "x" * len(NAME), "x"), study(tmp_path / "full", NAME, TEXT)
    printed = [harness("report", str(folder.path)) for folder in (plain, full)]
    assert [done.returncode for done in printed] == [0, 0], printed[1].stderr
    for done in printed:
        assert not steering(done.stdout + done.stderr)
    pages = [folder.summary_md.read_text() for folder in (plain, full)]
    assert "boom" in pages[1]
    assert kinds(pages[1]) == kinds(pages[0])
    assert tags(full.summary_html) == tags(plain.summary_html)
    timeline = gzip.decompress(full.timeline.read_bytes()).decode()
    for text in (*pages, full.summary_html.read_text(), full.summary_json.read_text(), timeline):
        assert not steering(text)
    for event in json.loads(timeline)["traceEvents"]:
        assert not steering(event["name"] + str(event.get("args", {}).get("name", "")))


def test_no_message_steers_the_terminal(tmp_path: Path) -> None:
    folder = study(tmp_path, NAME, TEXT)
    for words in ("compare {} {}", "baseline check {} --baselines {}/none", "trace {} --run \x1b[2Jx", "report {}\x9b"):
        done = harness(*(word.replace("{}", str(folder.path)) for word in words.split()))
        assert done.stdout or done.stderr
        assert not steering(done.stdout + done.stderr)
        assert "Traceback" not in done.stderr
    # JSON can escape half a character, which UTF-8 has none of.
    content = json.loads(folder.study_json.read_text())
    del content["content_sha256"]
    folder.study_json.write_text(json.dumps({**content, "question": "q?"}).replace("q?", r"q\ud800"))
    done = harness("report", str(folder.path), "--format", "md")
    assert done.returncode == 0, done.stderr
    assert "\\ud800" in done.stdout


def test_names_of_a_timeline_show_as_themselves() -> None:
    thread = Thread(TEXT, [Slice(TEXT, 0, 10, TEXT, {"site": TEXT, "bytes": 1})])
    process = Process(TEXT, [thread], [Values(TEXT, TEXT, [(0, 1.0)])])
    found = resolve(Trace([process]))
    ((_, shown),) = found.processes
    (row,) = found.rows
    (one,) = row.slices
    names = [shown.name, row.name, one.slice.name, one.slice.category, shown.counters[0].name, shown.counters[0].unit]
    assert names == [visible(TEXT)] * 6
    assert one.slice.args == {"site": visible(TEXT), "bytes": 1}
