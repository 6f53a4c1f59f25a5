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


def listed(candidate, **how):
    blocks = 5 if candidate.failed_blocks else 2
    (comparison,) = analyse(*build([BASE, candidate], [("base", candidate.name)], blocks=blocks, **how)).compared
    return confound_lines(comparison.confounds)


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
        (Arm("c", facts={"threads": 1}), "threads is 2 against 1"),
        (Arm("c", other_cpu_cores=0.5), "host load by other processes: 0.02 cores during base, 0.50 during c"),
        (Arm("c", failed_blocks=(1,)), "c did not finish block 1"),
        (Arm("c", failed_blocks=(1, 3)), "base has 5 finished blocks, c has 3"),
        (Arm("c", failed_blocks=(1,)), "compared over 4 of 5 planned blocks"),
    ],
)
def test_an_undeclared_difference_is_listed(candidate, words):
    assert any(words in line for line in listed(candidate)), listed(candidate)


def test_every_fact_of_a_run_has_a_reason_to_differ_or_is_measured():
    assert set(REASONS) == set(NAMES)


def test_facts_that_are_the_noise_of_a_measurement_are_no_confounds():
    """Two nodes of Slurm: the error of their clocks is another number in every run, and so is their memory."""
    noise = {"clock_error_ns": 32_884, "checkpoint_writing_ns": 5, "epoch_ends": 3, "marked_steps": [4]}
    assert all(REASONS[name] is MEASURED for name in noise)
    base = Arm("base", facts={"nodes": 2, **noise}, environment={"memory_bytes": 33_567_264_768})
    other = {"nodes": 2, "clock_error_ns": 28_443, "checkpoint_writing_ns": 9, "epoch_ends": 2, "marked_steps": [7]}
    for memory, keys in ((33_567_260_672, []), (67_000_000_000, ["memory_bytes"])):
        arms = [base, Arm("c", facts=other, environment={"memory_bytes": memory})]
        (comparison,) = analyse(*build(arms, [("base", "c")], blocks=2)).compared
        assert [one.key for one in comparison.confounds] == keys


def test_what_a_profile_says_of_another_precision_follows_from_it():
    one = {"profile": "h100-sxm", "dtype": "bfloat16", "peak_flops_per_s": 989e12, "peak_source": "bf16"}
    other = {"profile": "h100-sxm", "dtype": "float32", "peak_flops_per_s": 67e12, "peak_source": "fp32"}
    for declared, keys in ((["compute.precision"], []), ([], ["dtype", "peak_flops_per_s", "peak_source"])):
        arms = [Arm("base", facts=one), Arm("c", facts=other, declared=dict.fromkeys(declared, "fp32"))]
        (comparison,) = analyse(*build(arms, [("base", "c")], blocks=2)).compared
        assert [one.key for one in comparison.confounds] == keys


def test_declared_differences_are_not_listed():
    assert listed(Arm("c", declared={"data.batch_size": 16})) == []
    assert listed(Arm("c", declared={"compute.threads": 1}, facts={"threads": 1})) == []
    assert listed(Arm("c", declared={"data.tokenizer.train.vocab_size": 500}, facts={"vocab_size": 500})) == []


def test_kernel_times_of_an_emulated_device_follow_from_its_declaration():
    one, other = {"emulation": "gh200: forward 15 ms"}, {"emulation": "gh200: forward 30 ms"}
    for declared, lines in (({}, 1), ({"compute.device.kernels.forward_ms": 30.0}, 0)):
        arms = [Arm("base", facts=one), Arm("c", facts=other, declared=declared)]
        (comparison,) = analyse(*build(arms, [("base", "c")])).compared
        assert len(confound_lines(comparison.confounds)) == lines


def test_load_that_both_arms_had_is_said_and_called_no_difference():
    loaded = [Arm("base", other_cpu_cores=1.94), Arm("c", other_cpu_cores=1.96)]
    (comparison,) = analyse(*build(loaded, [("base", "c")])).compared
    (line,) = confound_lines(comparison.confounds)
    assert line == "host load by other processes: 1.96 cores during both base and c"


def test_another_engine_is_listed_unless_it_was_asked_for():
    speeds = {"tokenizer_proof": "proved; MB/s"}
    one, other = {"tokenizer_engine": "tokenizers 1"}, {"tokenizer_engine": "gigatoken 2", **speeds}
    (comparison,) = analyse(*build([Arm("base", facts=one), Arm("c", facts=other)], [("base", "c")])).compared
    assert confound_lines(comparison.confounds) == ["tokenizer_engine is 'tokenizers 1' against 'gigatoken 2'"]
    arms = [Arm("base", facts=one), Arm("c", facts=other, declared={"data.tokenizer.engine": "auto"})]
    (comparison,) = analyse(*build(arms, [("base", "c")])).compared
    assert confound_lines(comparison.confounds) == []
    arms = [Arm("base", facts={**one, **speeds}), Arm("c", facts={**one, "tokenizer_proof": "as fast again"})]
    (comparison,) = analyse(*build(arms, [("base", "c")])).compared
    assert confound_lines(comparison.confounds) == []  # measured: no two machines have the same


def test_the_fingerprint_of_the_users_own_code_is_what_two_states_of_it_declare():
    facts = (
        {"corpus_fingerprint": "a", "tokenizer_fingerprint": "a"},
        {"corpus_fingerprint": "b", "tokenizer_fingerprint": "b"},
    )
    own = {"config": {"data.source": "mydata:make"}}
    declared = {"declared": {"code": "1"}}, {"declared": {"code": "2"}}

    def listed(one, other, **config):
        arms = [Arm("base", facts=facts[0], **one, **config), Arm("c", facts=facts[1], **other, **config)]
        (comparison,) = analyse(*build(arms, [("base", "c")], blocks=2)).compared
        return [line for line in confound_lines(comparison.confounds) if "fingerprint" in line]

    assert listed(*declared, **own) == []
    assert len(listed(*declared)) == 2  # it was given other texts
    assert len(listed({}, {}, **own)) == 2  # edited between two runs of one state


def test_a_declared_key_brings_the_defaults_of_its_section_along():
    inject = {"declared": {"data.inject.read_ms": 5}, "config": {"data.inject.how": "busy"}}
    assert listed(Arm("c", **inject)) == []
    assert listed(Arm("c", config={"data.inject.how": "busy"})) != []


def test_a_declared_key_does_not_excuse_its_neighbour():
    lines = listed(Arm("c", declared={"data.batch_size": 16}, config={"data.batch_sizes": 1}))
    assert lines == ["configuration: data.batch_sizes is None against 1"]


def test_a_difference_in_one_block_only_is_listed_once():
    study, runs = build([BASE, Arm("c")], [("base", "c")])
    runs[-1] = replace(runs[-1], record=replace(runs[-1].record, session="another"))
    (comparison,) = analyse(study, runs).compared
    assert confound_lines(comparison.confounds) == ["not run side by side: different sessions in block 4"]


@pytest.mark.parametrize("key", ["corpus_fingerprint", "tokenizer_fingerprint"])
def test_an_arm_whose_blocks_read_other_data_is_listed(key):
    """Both arms of every block read the same: no comparison of arms sees it."""
    study, runs = build([BASE, Arm("c")], [("base", "c")])
    runs = [
        replace(
            run, record=replace(run.record, facts=replace(run.record.facts, **{key: "a" if run.record.block else "b"}))
        )
        for run in runs
    ]
    (comparison,) = analyse(study, runs).compared
    assert confound_lines(comparison.confounds) == [
        f"{key} differs between blocks of {name}: its data changed during the study" for name in ("base", "c")
    ]


@pytest.mark.parametrize("whose", ["program", "model"])
def test_an_arm_whose_code_was_edited_between_blocks_is_listed(whose):
    study, runs = build([BASE, Arm("c")], [("base", "c")])
    edited = [run for run in runs if run.record.arm == "c" and run.record.block > 2]
    codes = {id(run): "b" if run in edited else "a" for run in runs}
    runs = [
        replace(
            run,
            record=replace(run.record, facts=replace(run.record.facts, **{f"{whose}_fingerprint": codes[id(run)]})),
        )
        for run in runs
    ]
    (comparison,) = analyse(study, runs).compared
    assert confound_lines(comparison.confounds) == [
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
        curriculum({"data.batch_size": 12}),
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


def test_tokens_that_are_trained_are_compared_where_positions_are_not_counted():
    study, runs = build([BASE, Arm("c", trained=1500)], [("base", "c")], blocks=2)
    column = runs[0].steps.schema.get_field_index("tokens")
    unknown = pa.nulls(len(runs[0].steps), runs[0].steps.schema.field(column).type)
    runs = [replace(run, steps=run.steps.set_column(column, run.steps.schema.field(column), unknown)) for run in runs]
    (comparison,) = analyse(study, runs).compared
    (line,) = confound_lines(comparison.confounds)
    assert line.startswith("other batches: 1,900 trained tokens a step of base, 1,500 of c")


def measured_apart(short_steps, long_steps, interleave="runs"):
    """Alike but for the number of measured steps; the first 20 of each run take a quarter longer."""
    quiet = dict.fromkeys(NOISE, 0.0)
    sides = [
        build([Arm(name)], blocks=3, repetitions=1, steps=steps, interleave=interleave, noise=quiet)
        for name, steps in (("base", short_steps), ("c", long_steps))
    ]
    runs = [run for _, side in sides for run in side]
    for place, run in enumerate(runs):
        wall = np.array(run.steps["wall_ns"])
        wall = np.where(np.arange(len(wall)) <= 20, wall + wall // 4, wall)
        column = run.steps.schema.get_field_index("wall_ns")
        runs[place] = replace(run, steps=run.steps.set_column(column, "wall_ns", pa.array(wall)))
    study = replace(sides[0][0], arms=[ArmRecord("base"), ArmRecord("c")], comparisons=[ComparisonRecord("base", "c")])
    (comparison,) = analyse(study, runs).compared
    return comparison


def test_runs_that_measured_more_steps_are_listed_with_what_the_first_ones_say():
    """Identical arms of 20 and 60 steps, of which the first 20 are slower: 1.2x as fast, and no change made that."""
    found = measured_apart(20, 60)
    assert found.measured.ratio.median > 1.1
    assert confound_lines(found.confounds) == [
        "other steps: 20 in a run of base, 60 of c; by the first 20 of both, steps of c are 1.000x as fast"
    ]


@pytest.mark.parametrize(("steps", "interleave"), [((20, 21), "runs"), ((20, 60), "slices"), ((20, 20), "runs")])
def test_steps_rounded_to_repetitions_and_alternated_ones_are_not_listed(steps, interleave):
    assert confound_lines(measured_apart(*steps, interleave).confounds) == []


def test_flatten_keeps_empty_sections():
    assert flatten({"a": {"b": 1, "c": {}}, "d": None}) == {"a.b": 1, "a.c": {}, "d": None}
