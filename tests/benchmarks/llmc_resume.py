"""A training that goes on from a model file of llm.c beside the uninterrupted one, loss by loss.

``python -m tests.benchmarks.llmc_resume --out results/reference/llmc-resume`` trains a small GPT-2, writes the model of
a step in the middle as llm.c's model file, trains the rest from that file, and compares the losses of the same steps.
The file holds weights alone: the optimizer's moments begin at zero, which is what the two differ by.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import fmean

from harness.launch.training_files import EVALUATIONS, LOSSES, read_evaluations, read_losses

SCENARIO = """\
name: llmc-resume
question: What does a training lose that goes on from weights alone?
base:
  model: {{preset: gpt2-tiny, layers: 2, width: 64, heads: 2, ffn_width: 256}}
  data:
    corpus: {{builtin: python-docs, documents: 2000}}
    tokenizer.train: {{kind: bpe, vocab_size: 1024}}
    path: tokens-mmap
    access: zero-copy
    sequence_length: 64
    batch_size: 16
  compute.threads: 1
  optimizer: {{learning_rate: 3.0e-3, schedule: cosine, lr_warmup_steps: 20, final_fraction: 0.1}}
  evaluation: {{documents: 100, batches: 8, every_steps: {every}}}
  checkpoint: {{every_steps: {seed}, keep: 9}}
  steps: {steps}
  warmup_steps: 1
arms: {{whole: null, seeded: {{resume: {{llmc: {file}, step: {seed}}}}}}}
"""
SPANS = (1, 10, 50, 100)  # steps after the seed that are summed up


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="gets README.md and the pictures")
    parser.add_argument("--work", type=Path, metavar="DIR", help="where the trainings go (default: DIR/work)")
    parser.add_argument("--steps", type=int, default=600, metavar="N", help="of the whole (default: %(default)s)")
    parser.add_argument("--seed-at", type=int, default=300, metavar="K", help="step (default: %(default)s)")
    arguments = parser.parse_args()
    work = (arguments.work or arguments.out / "work").absolute()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    seed, steps, file = arguments.seed_at, arguments.steps, work / f"model_{arguments.seed_at:08d}.bin"
    scenario = work / "llmc-resume.yaml"
    scenario.write_text(SCENARIO.format(steps=steps, seed=seed, every=max(1, steps // 12), file=file))
    call("train", str(scenario), "--arm", "whole", "--steps", str(steps), "--out", str(work / "whole"))
    call("export", "llmc-model", str(work / f"whole/checkpoints/step-{seed:08d}"), "--out", str(file))
    call("train", str(scenario), "--arm", "seeded", "--steps", str(steps), "--out", str(work / "seeded"))
    call("plot", str(work / "whole"), str(work / "seeded"), "--out", str(arguments.out / "plots"))
    page = "\n".join(written(work, seed, steps)) + "\n"
    (arguments.out / "README.md").write_text(page)
    print(page)
    return 0


def call(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "harness", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"harness {words[0]} ended with {done.returncode}: {done.stderr[-2000:]}")


def written(work: Path, seed: int, steps: int) -> list[str]:
    """The page."""
    whole, seeded = (read_losses(work / name / LOSSES) for name in ("whole", "seeded"))
    rest = whole[seed:]
    assert [one.step for one in rest] == [one.step for one in seeded] == list(range(seed, steps))
    assert [one.tokens for one in rest] == [one.tokens for one in seeded]
    more = [theirs.loss - ours.loss for ours, theirs in zip(rest, seeded, strict=True)]
    lines = [
        "# A training that goes on from a model file of llm.c",
        "",
        f"`python -m tests.benchmarks.llmc_resume --out results/reference/llmc-resume`: {steps} steps of "
        f"a small GPT-2; the model after step {seed} becomes llm.c's model file (`harness export llmc-model`), "
        f"and a second training goes on from it (`resume: {{llmc: FILE, step: {seed}}}`). Steps, schedule, tokens "
        "and documents are the same. The file holds weights alone, so the optimizer's moments begin at zero.",
        "",
        f"Step {seed}, before any update: {rest[0].loss:.6f} and {seeded[0].loss:.6f}.",
        "",
        "| steps after the seed | uninterrupted, mean loss | from the file | more |",
        "| --- | ---: | ---: | ---: |",
    ]
    for count in (*(one for one in SPANS if one < len(more)), len(more)):
        ours, theirs = (fmean(one.loss for one in rows[:count]) for rows in (rest, seeded))
        lines.append(f"| the first {count} | {ours:.4f} | {theirs:.4f} | {theirs - ours:+.4f} |")
    passes = [read_evaluations(work / name / EVALUATIONS) for name in ("whole", "seeded")]
    last = [one[-1].loss for one in passes]
    lines += [
        "",
        f"The largest difference of one step is {max(more, key=abs):+.4f}. On held-out data, at the end: {last[0]:.4f} "
        f"uninterrupted, {last[1]:.4f} from the file.",
        "",
        "![Loss](plots/loss.png)",
    ]
    return lines


if __name__ == "__main__":
    sys.exit(main())
