"""Each kind of undeclared difference is listed, declared ones are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from harness.judge.confounds import MEASURED, REASONS, flatten
from harness.judge.study import analyse
from harness.show.text.doubts import confound_lines
from harness.study.records import NAMES, ArmRecord, ComparisonRecord
from tests.harness import synthetic
from tests.harness.synthetic import NOISE, Arm

BASE = Arm("base")


def build(*arms_and_pairs, **how):
    """A study as in ``synthetic``, without replays."""
    return synthetic.build(*arms_and_pairs, **{"spans": False, **how})


def between(base, candidate, **how):
    """The comparison of two arms."""
    study, runs = build([base, candidate], [(base.name, candidate.name)], **{"blocks": 2, **how})
    return analyse(study, runs).compared[0]


def listed(candidate, base=BASE, **how):
    return confound_lines(between(base, candidate, **how).confounds)


def of_runs(change, blocks=5):
    """The lines of two equal arms whose records are changed by ``change``."""
    study, runs = build([BASE, Arm("c")], [("base", "c")], blocks=blocks)
    return confound_lines(
        analyse(study, [replace(run, record=change(run.record)) for run in runs]).compared[0].confounds
    )


def test_arms_that_differ_in_nothing_have_no_confounds():
    assert listed(Arm("same"), spans=True) == []


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (Arm("c", config={"data.batch_size": 16}), "configuration: data.batch_size is 8 against 16"),
        (Arm("c", config={"model.layers": 2}), "configuration: model.layers is None against 2"),
        (Arm("c", trained=1000), "useful tokens: base trains on 93 % of its positions"),
        (Arm("c", environment={"git_commit": "fffffff"}), "environment: git_commit is '0123abc' against 'fffffff'"),
        (Arm("c", facts={"device_count": 2}), "device_count is 1 against 2"),
        (Arm("c", other_cpu_cores=0.5), "host load by other processes: 0.02 cores during base, 0.50 during c"),
        (Arm("c", failed_blocks=(1,)), "c did not finish block 1"),
        (Arm("c", failed_blocks=(1, 3)), "base has 5 finished blocks, c has 3"),
        (Arm("c", failed_blocks=(1,)), "compared over 4 of 5 planned blocks"),
        # A declared key does not excuse its neighbour.
        (Arm("c", declared={"data.batch_size": 16}, config={"data.batch_sizes": 1}),
         "configuration: data.batch_sizes is None against 1"),
        (Arm("c", config={"data.inject.how": "busy"}), "data.inject"),
    ],
)  # fmt: skip
def test_an_undeclared_difference_is_listed(candidate, words):
    lines = listed(candidate, blocks=5 if candidate.failed_blocks else 2)
    assert any(words in line for line in lines), lines


@pytest.mark.parametrize(
    "candidate",
    [
        Arm("c", declared={"data.batch_size": 16}),
        Arm("c", declared={"compute.threads": 1}, facts={"threads": 1}),
        Arm("c", declared={"data.tokenizer.train.vocab_size": 500}, facts={"vocab_size": 500}),
        # A declared key brings the defaults of its section along.
        Arm("c", declared={"data.inject.read_ms": 5}, config={"data.inject.how": "busy"}),
    ],
)
def test_declared_differences_are_not_listed(candidate):
    assert listed(candidate) == []


def test_every_fact_of_a_run_has_a_reason_to_differ_or_is_measured():
    assert set(REASONS) == set(NAMES)


NODES = {"nodes": 2, "checkpoint_writing_ns": 5, "epoch_ends": 3}  # the error of clocks is another one in every run
MEMORY = {"memory_bytes": 33_567_260_672}, {"memory_bytes": 67_000_000_000}
HALF = {"profile": "h100-sxm", "dtype": "bfloat16", "peak_flops_per_s": 989e12, "peak_source": "bf16"}
SINGLE = {"profile": "h100-sxm", "dtype": "float32", "peak_flops_per_s": 67e12, "peak_source": "fp32"}
FAST = {"tokenizer_engine": "gigatoken 2", "tokenizer_proof": "proved; MB/s"}
PRINTS = tuple({"corpus_fingerprint": one, "tokenizer_fingerprint": one} for one in "ab")
OWN = {"data.source": "mydata:make"}
CODES = tuple({"code": one} for one in "12")


@pytest.mark.parametrize(
    ("base", "candidate", "keys"),
    [
        # Facts that are the noise of a measurement.
        (Arm("base", facts={**NODES, "clock_error_ns": 32_884}, environment={"memory_bytes": 33_567_264_768}),
         Arm("c", facts={**NODES, "clock_error_ns": 28_443, "epoch_ends": 2}, environment=MEMORY[0]), []),
        (Arm("base", environment=MEMORY[0]), Arm("c", environment=MEMORY[1]), ["memory_bytes"]),
        # What a profile says of another precision follows from it.
        (Arm("base", facts=HALF), Arm("c", facts=SINGLE, declared={"compute.precision": "fp32"}), []),
        (Arm("base", facts=HALF), Arm("c", facts=SINGLE), ["dtype", "peak_flops_per_s", "peak_source"]),
        # Kernel times of an emulated device follow from its declaration.
        (Arm("base", facts={"emulation": "a"}), Arm("c", facts={"emulation": "b"}), ["emulation"]),
        (Arm("base", facts={"emulation": "a"}),
         Arm("c", facts={"emulation": "b"}, declared={"compute.device.kernels.forward_ms": 30.0}), []),
        # Another engine of a tokenizer, unless it was asked for. Its speed is measured: no two machines have the same.
        (Arm("base", facts={"tokenizer_engine": "tokenizers 1"}), Arm("c", facts=FAST), ["tokenizer_engine"]),
        (Arm("base", facts={"tokenizer_engine": "tokenizers 1"}),
         Arm("c", facts=FAST, declared={"data.tokenizer.engine": "auto"}), []),
        (Arm("base", facts=FAST), Arm("c", facts={**FAST, "tokenizer_proof": "as fast again"}), []),
        # The fingerprint of the user's own code is what two states of it declare.
        (Arm("base", facts=PRINTS[0], config=OWN, declared=CODES[0]),
         Arm("c", facts=PRINTS[1], config=OWN, declared=CODES[1]), []),
        (Arm("base", facts=PRINTS[0], declared=CODES[0]), Arm("c", facts=PRINTS[1], declared=CODES[1]), [*PRINTS[0]]),
        (Arm("base", facts=PRINTS[0], config=OWN), Arm("c", facts=PRINTS[1], config=OWN), [*PRINTS[0]]),  # edited
    ],
)  # fmt: skip
def test_facts_that_follow_from_what_is_declared_or_measured_are_not_listed(base, candidate, keys):
    assert [one.key for one in between(base, candidate).confounds] == keys


def test_what_is_measured_is_no_confound():
    for name in ("clock_error_ns", "checkpoint_writing_ns", "epoch_ends", "marked_steps"):
        assert REASONS[name] is MEASURED


def test_load_that_both_arms_had_is_said_and_called_no_difference():
    (line,) = listed(Arm("c", other_cpu_cores=1.96), Arm("base", other_cpu_cores=1.94))
    assert line == "host load by other processes: 1.96 cores during both base and c"


def test_a_difference_in_one_block_only_is_listed_once():
    lines = of_runs(lambda one: replace(one, session="x") if (one.arm, one.block) == ("c", 4) else one)
    assert lines == ["not run side by side: different sessions in block 4"]


def with_fact(record, name, value):
    return replace(record, facts=replace(record.facts, **{name: value}))


@pytest.mark.parametrize("key", ["corpus_fingerprint", "tokenizer_fingerprint"])
def test_an_arm_whose_blocks_read_other_data_is_listed(key):
    """Both arms of every block read the same: no comparison of arms sees it."""
    assert of_runs(lambda one: with_fact(one, key, "a" if one.block else "b")) == [
        f"{key} differs between blocks of {name}: its data changed during the study" for name in ("base", "c")
    ]


@pytest.mark.parametrize("whose", ["program", "model"])
def test_an_arm_whose_code_was_edited_between_blocks_is_listed(whose):
    def edited(one):
        return with_fact(one, f"{whose}_fingerprint", "b" if one.arm == "c" and one.block > 2 else "a")

    assert of_runs(edited) == [
        f"the code of the {whose} differs between blocks of c: it was edited during the study",
        f"{whose}_fingerprint is 'a' against 'b'",
    ]


def curriculum(declared, **config):
    """An arm that measured later batches of a training whose batches grow: 1.4 times the tokens, the same settings."""
    return Arm("c", tokens=2900, trained=2690, declared=declared, config=config)


@pytest.mark.parametrize("declared", [{"data.workers": 4}, {"data.prefetch": 8}, {"compute.threads": 1}])
def test_steps_with_other_numbers_of_tokens_that_no_setting_asks_for_are_listed(declared):
    assert [line for line in listed(curriculum(declared)) if "other batches" in line] == [
        "other batches: 2,048 positions a step of base, 2,900 of c, although no setting differs: part of the "
        "difference may be due to the batches"
    ]


@pytest.mark.parametrize(
    "candidate",
    [
        curriculum({"data.batch_size": 12, "data.workers": 4}),
        curriculum({}, **{"data.sequence_length": 512}),  # undeclared, and listed as that
        curriculum({"data.path": "text-stream"}),
        curriculum({"data.of_a_later_version": 1}),
        curriculum({"data.tokenizer.train.vocab_size": 500}),
        curriculum({"optimizer.accumulation": 2}),
        curriculum({"command": "python train.py --batch 12"}),
        curriculum({"code": "HEAD~1"}),
        Arm("c", tokens=2060, trained=1910, declared={"data.workers": 4}),  # as good as the same
    ],
)
def test_steps_with_other_numbers_of_tokens_that_are_asked_for_are_not_listed(candidate):
    assert not [line for line in listed(candidate) if "other batches" in line]


def set_column(run, name, values):
    place, field = run.steps.schema.get_field_index(name), run.steps.schema.field(name)
    return replace(run, steps=run.steps.set_column(place, field, pa.array(values, field.type)))


def test_tokens_that_are_trained_are_compared_where_positions_are_not_counted():
    study, runs = build([BASE, Arm("c", trained=1500)], [("base", "c")], blocks=2)
    runs = [set_column(run, "tokens", [None] * len(run.steps)) for run in runs]
    (line,) = confound_lines(analyse(study, runs).compared[0].confounds)
    assert line.startswith("other batches: 1,900 trained tokens a step of base, 1,500 of c")


@pytest.mark.parametrize(
    ("steps", "interleave", "lines"),
    [
        # Identical arms of 20 and 60 steps, of which the first 20 are slower: 1.2x as fast, and no change made that.
        ((20, 60), "runs",
         ["other steps: 20 in a run of base, 60 of c; by the first 20 of both, steps of c are 1.000x as fast"]),
        ((20, 21), "runs", []),  # rounded to repetitions
        ((20, 60), "slices", []),
        ((20, 20), "runs", []),
    ],
)  # fmt: skip
def test_runs_that_measured_more_steps_are_listed_with_what_the_first_ones_say(steps, interleave, lines):
    """Alike but for the number of measured steps; the first 20 of each run take a quarter longer."""
    quiet = dict.fromkeys(NOISE, 0.0)
    sides = [
        build([Arm(name)], blocks=3, repetitions=1, steps=count, interleave=interleave, noise=quiet)
        for name, count in zip(("base", "c"), steps, strict=True)
    ]
    runs = []
    for run in (run for _, side in sides for run in side):
        wall = np.array(run.steps["wall_ns"])
        runs.append(set_column(run, "wall_ns", np.where(np.arange(len(wall)) <= 20, wall + wall // 4, wall)))
    study = replace(sides[0][0], arms=[ArmRecord("base"), ArmRecord("c")], comparisons=[ComparisonRecord("base", "c")])
    found = analyse(study, runs).compared[0]
    assert confound_lines(found.confounds) == lines
    assert (found.measured.ratio.median > 1.1) == (steps == (20, 60))


def test_flatten_keeps_empty_sections():
    assert flatten({"a": {"b": 1, "c": {}}, "d": None}) == {"a.b": 1, "a.c": {}, "d": None}
