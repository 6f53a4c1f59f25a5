"""harness init: writes a commented scenario for the user's case, from questions on a terminal or from options."""

from __future__ import annotations

import argparse
import glob
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.commands.arguments import DEFAULT_OUT
from harness.commands.output import say
from trainer.errors import InputError
from trainer.files import expanded
from trainer.json_types import section

TEXT, SOURCE, LOOP, COMMAND = "text", "source", "loop", "command"  # subjects of a scenario
ABOUT = (TEXT, SOURCE, LOOP, COMMAND)
OURS = (TEXT, SOURCE)  # subjects run by the harness's own trainer; the others run unchanged
REPEATS, LEAST_REPEATS = 5, 3  # blocks; fewer than 3 give no interval
MOST_S = 300.0  # seconds; longest study that it writes


@dataclass(frozen=True)
class Question:
    """A question of ``harness init``, asked on the terminal or answered by the option ``--NAME VALUE``."""

    name: str
    value: str
    text: str
    default: str = ""
    of: tuple[str, ...] = ABOUT  # kinds of scenario that need it
    unless: str | None = None  # question whose answer makes this one superfluous
    asked: bool = True  # False for an option that the terminal does not ask for

    @property
    def attribute(self) -> str:
        return f"answer_{self.name}"  # "command" is an attribute of the command line itself.


KIND = Question(
    "about",
    "KIND",
    "what to measure: text, source (a dataset or loader in Python), loop (a function that trains) or "
    "command (any training command)?",
    TEXT,
)
QUESTIONS = (
    Question("name", "NAME", "name of the scenario (and of its folder under results/)", "mine"),
    Question("command", "'COMMAND'", "your training command, such as 'python train.py'", of=(COMMAND,)),
    Question("loop", "MODULE:FUNCTION", "your function that trains: MODULE:FUNCTION", of=(LOOP,)),
    Question(
        "against",
        "'COMMAND'",
        "compare with this: another 'COMMAND' (with --loop another MODULE:FUNCTION); empty for none",
        of=(LOOP, COMMAND),
    ),
    Question("steps", "N", "measured steps of each block; the training must last for 5 more", "60", (LOOP, COMMAND)),
    Question(
        "source", "MODULE:FUNCTION", "your function that returns a Dataset or DataLoader: MODULE:FUNCTION", of=(SOURCE,)
    ),
    Question(
        "corpus",
        "PATH",
        "your text: a file, folder, glob or URL (Parquet, JSONL, text, Arrow); empty for Python's own documentation",
        of=(TEXT,),
    ),
    Question("parquet", "PATH", "your text in Parquet: a file or glob", of=(TEXT,), unless="corpus", asked=False),
    Question("column", "NAME", "its column with the text (text files have none)", "text", (TEXT,)),
    Question(
        "tokenizer",
        "PATH",
        "your tokenizer: a tokenizer.json or a folder for AutoTokenizer; empty to train one on the text",
        of=(TEXT,),
    ),
    Question(
        "factory",
        "MODULE:FUNCTION",
        "your function that returns a torch module: MODULE:FUNCTION; empty for a preset",
        of=OURS,
    ),
    Question(
        "model",
        "PRESET",
        "model preset: gpt2-small, llama-1b, ... (a wrong one is answered with all)",
        "gpt2-tiny",
        OURS,
        "factory",
    ),
    Question("vocab-size", "N", "number of ids of your source; empty if the model defines it", of=(SOURCE,)),
    Question("device", "DEVICE", "device: auto, cpu or cuda", "auto", OURS),
    Question("sequence-length", "N", "sequence length", "128", OURS),
    Question("batch-size", "N", "batch size", "4", OURS),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="scenario file to write")
    for question in QUESTIONS:
        default = f" (default: {question.default or 'empty'})" if question.name not in ABOUT else ""
        parser.add_argument(
            f"--{question.name}", dest=question.attribute, metavar=question.value, help=f"{question.text}{default}"
        )
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    parser.add_argument(
        "--no-trial",
        action="store_true",
        help="do not run a few steps of every arm (about 20 seconds) to estimate the duration of the study",
    )


def init(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Ask for answers, write and check the scenario. Raises InputError if the file exists or an answer is wrong."""
    path = Path(arguments.file)
    if path.is_dir():
        raise InputError(f"init: {path} is a folder; give a file")
    if path.exists() and not arguments.force:
        raise InputError(f"init: {path} exists; --force overwrites it")
    if not path.parent.is_dir():
        raise InputError(f"init: {path}: no such folder {path.parent}")
    options = {
        question.name: value for question in QUESTIONS if (value := getattr(arguments, question.attribute)) is not None
    }
    subject = _about(options)
    answers = _answers(subject, options)
    for name, answer in answers.items():
        if not answer.isprintable() or any("\ud800" <= letter <= "\udfff" for letter in answer):
            raise InputError(f"init: {path}: --{name} {answer!r}: not valid text for a file")
        if name in ("corpus", "parquet") and answer and "://" not in answer and not _matches(answer):
            raise InputError(f"init: --{name} {answer}: no such file; allowed: a file, a folder, a glob or a URL")
    _check(path, scenario_text(subject, answers, REPEATS))
    say(f"wrote {path}")
    _say_duration(path, subject, answers, measures=not arguments.no_trial)
    say(f"  harness run {path} --plan     every run of it, in order")
    if subject in OURS:
        say(f"  harness doctor {path}         is this machine fit for it?")
    say(f"  harness run {path}            the study")
    return 0


def _say_duration(path: Path, about: str, answers: Mapping[str, str], *, measures: bool) -> None:
    """Print how long the study is expected to take. Above MOST_S seconds, first rewrite the file with fewer blocks.

    ``measures``: True to run a few steps of every arm if no earlier study shows the duration.
    """
    from harness.commands.durations import Duration, expected, how_to_measure, trial
    from harness.scenario.commands import CommandPlan, CommandScenario, open_scenario, plan_commands
    from harness.scenario.plan import make_plan

    source, out = str(path), Path(DEFAULT_OUT)
    scenario = open_scenario(path)
    plan = plan_commands(scenario) if isinstance(scenario, CommandScenario) else make_plan(scenario, source)
    unknown = "no study of these arms has run here"
    duration = expected(plan, out)
    if duration is None and measures and not isinstance(plan, CommandPlan):
        print("trial: a few steps of every arm, to estimate the duration (skip it with --no-trial)", file=sys.stderr)
        try:
            duration = trial(plan, source, out)
        except InputError as error:
            unknown = f"the trial failed: {error}"
    if duration is None:
        say(f"expected duration: unknown ({unknown}); {how_to_measure(plan, source)}")
        return
    repeats = max(LEAST_REPEATS, min(REPEATS, int(REPEATS * MOST_S / duration.seconds)))
    if repeats < REPEATS:
        _check(path, scenario_text(about, answers, repeats))
        duration = Duration(
            duration.seconds * repeats / REPEATS, f"{duration.basis}; {repeats} blocks instead of {REPEATS}"
        )
    say(f"expected duration: {duration.text}")
    if duration.seconds > MOST_S:
        say("  that is long: fewer arms, controls or steps in the file shorten it, and so does a smaller model")


def _matches(pattern: str) -> bool:
    return bool(glob.glob(str(expanded(pattern)), recursive=True))  # noqa: PTH207 (absolute patterns, too)


def _about(given: Mapping[str, str]) -> str:
    """Return the kind of scenario (:data:`ABOUT`). Raises InputError if options contradict each other."""
    kinds = [kind for kind in ABOUT if kind in given]
    if len(kinds) > 1:
        raise InputError(f"init: --{kinds[0]} and --{kinds[1]}: a scenario is about one of them; omit the other")
    if kinds:
        return kinds[0]
    if any(question.of == (TEXT,) and question.name in given for question in QUESTIONS):
        return TEXT
    subject = _ask(KIND)
    if subject not in ABOUT:
        raise InputError(f"init: {subject!r}: allowed: {', '.join(ABOUT)}")
    return subject


def _answers(about: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return {question name: answer}. Raises InputError for an option of another kind of scenario than ``about``."""
    answers: dict[str, str] = {}
    for question in QUESTIONS:
        if about in question.of and not answers.get(question.unless or ""):
            is_asked = question.asked and question.name not in given
            answers[question.name] = _ask(question) if is_asked else given.get(question.name) or question.default
        elif question.name in given and about in question.of:
            raise InputError(f"init: --{question.name} does not go with --{question.unless}")
        elif question.name in given:
            scenarios = " or ".join("text" if kind == TEXT else f"--{kind}" for kind in question.of)
            raise InputError(f"init: --{question.name} goes with {scenarios}; this scenario is about {about}")
    if about != TEXT and not answers[about].strip():
        raise InputError(f"init: --{about}: the scenario needs it; give it")
    return answers


def _ask(one: Question) -> str:
    """Ask on the terminal and return the answer; the default without a terminal or for an empty answer."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return one.default
    print(f"{one.text} [{one.default}]: ", end="", flush=True)
    return sys.stdin.readline().strip() or one.default


def _check(path: Path, text: str) -> None:
    """Write the scenario ``text`` to ``path`` if it is valid. Otherwise raise InputError, and write nothing."""
    from harness.scenario.commands import CommandScenario, open_scenario
    from trainer.files import temporary_path, write_text
    from trainer.user_code import fingerprint

    draft = temporary_path(path)
    write_text(draft, text)
    try:
        scenario = open_scenario(draft)
        if not isinstance(scenario, CommandScenario):
            for section_name, key in (("data", "source"), ("model", "factory")):
                if isinstance(name := section(scenario.base, section_name).get(key), str):
                    fingerprint(f"{section_name}.{key}", name)  # Checks that the module exists, without importing it.
        draft.replace(path)
    except InputError as error:
        raise InputError(f"init: {str(error).replace(str(draft), str(path))}") from error
    finally:
        draft.unlink(missing_ok=True)


def scenario_text(about: str, answers: Mapping[str, str], repeats: int) -> str:
    """Return the scenario as YAML with comments. ``answers``: by question name. ``repeats``: number of blocks."""
    name = quoted(answers["name"])
    head = f"# Written by harness init. Every key: harness schema, or scenarios/schema.json.\nname: {name}\n"
    return head + (_trained_by_us if about in OURS else _run_as_it_is)(about, answers, repeats)


def _trained_by_us(about: str, answers: Mapping[str, str], repeats: int) -> str:
    model = f"preset: {quoted(answers['model'])}" if "model" in answers else f"factory: {quoted(answers['factory'])}"
    hint = "override any dimension: layers, width, heads ..." if "model" in answers else "your module"
    if answers.get("vocab-size"):
        model += f", vocab_size: {number(answers['vocab-size'])}"
    data = _data_of_source(answers) if about == SOURCE else _data_of_text(answers)
    return f"""\
question: {_QUESTION_OF[about]}

base: # shared by all arms
  model: {{{model}}} # {hint}
  data:
{data}
    sequence_length: {number(answers["sequence-length"])}
    batch_size: {number(answers["batch-size"])}
  compute: {{device: {quoted(answers["device"])}}}
  steps: 40 # measured steps of each run
  warmup_steps: 5 # unmeasured steps before them

arms: # settings that differ; the first arm is the baseline
{_ARMS_OF[about]}

# a-a: noise floor, needed for any verdict. ideal-data: the same steps without data work. data-only: the data path
# alone, as benchmarks of loaders measure it.
controls: [a-a, ideal-data, data-only]
repeats: {repeats} # blocks: each runs every arm once, over the same documents; more blocks narrow the intervals
slice_steps: 10 # arms take turns of this many steps, so that other load on the machine affects all of them
"""


_QUESTION_OF = {
    TEXT: "Does pretokenizing this text, or a loader worker, make training faster, end to end, on this machine?",
    SOURCE: "Does this data source keep up with the model, and does a loader worker make training faster?",
}
_ARMS_OF = {
    TEXT: """\
  text: {data.path: text-stream} # tokenizes during training; documents are packed end to end
  tokens: {data.path: tokens-stream} # the same tokens, tokenized before
  text-w1: {data.path: text-stream, data.workers: 1} # tokenizes in a loader worker""",
    SOURCE: """\
  inline: {} # the training loop makes the batches
  one-worker: {data.workers: 1} # a loader worker makes them""",
}


def _data_of_text(answers: Mapping[str, str]) -> str:
    corpus = "builtin: python-docs # your text: {path: mine, column: text}: Parquet, JSONL, text or Arrow; s3:// too"
    for key, name in (("path", "corpus"), ("parquet", "parquet")):
        if answers.get(name):
            corpus = f"{key}: {quoted(answers[name])}\n      column: {quoted(answers['column'])}"
    tokenizer = "train: {kind: bpe, vocab_size: 4096} # yours: {pretrained: FOLDER or tokenizer.json}"
    if answers["tokenizer"]:
        tokenizer = f"pretrained: {quoted(answers['tokenizer'])}"
    return f"    corpus:\n      {corpus}\n    tokenizer:\n      {tokenizer}"


def _data_of_source(answers: Mapping[str, str]) -> str:
    source = quoted(answers["source"])
    return (
        f"    source: {source} # gets batch_size, sequence_length and seed, if it has these parameters\n"
        "    # arguments: {path: mine.bin} # further arguments"
    )


def _run_as_it_is(about: str, answers: Mapping[str, str], repeats: int) -> str:
    candidate, baseline = answers[about], answers["against"]
    question = f"Is {candidate} faster than {baseline}?" if baseline else f"Where does the time of {candidate} go?"
    vary = "{workers: 2}, where the command has --workers {workers}"
    if about == LOOP:
        vary = "{workers: 2}, where the function has a parameter workers"
    arms = f"  mine: {{}} # the {about} above; add an arm with other values to vary it: {vary}"
    if baseline:
        arms = (
            f"  baseline: {{{about}: {quoted(baseline)}}} # the first arm is the baseline\n"
            f"  candidate: {{}} # the {about} above"
        )
    return f"""\
question: {quoted(question)}

{about}: {quoted(candidate)} # runs unchanged, in the current folder

arms: # settings that differ
{arms}

# Each control runs the same {about} once more. a-a: noise floor, needed for any verdict. ideal-data: steps without
# waits for data. data-only: batches alone.
controls: [a-a, ideal-data, data-only]
repeats: {repeats} # blocks, each with new processes; more blocks narrow the intervals
warmup: 5 # unmeasured steps before the measured ones
steps: {number(answers["steps"])} # measured steps of each block; the training must be long enough
interleave: slices # all arms of a block stay in memory and take turns of 20 steps; runs: one after another
"""


def number(text: str) -> str:
    """Return ``text`` as YAML: a whole number as it is, any other text (``1.5``) as a quoted string. The check of the
    scenario refuses such a string where it expects a whole number.
    """
    return str(int(text)) if text.isascii() and text.isdigit() and len(text) < 20 else quoted(text)


def quoted(text: str) -> str:
    """Return ``text`` as a YAML string in double quotes."""
    return json.dumps(text, ensure_ascii=False)
