"""Each kind of undeclared difference is listed, declared ones are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.confounds import flatten
from harness.analysis.study import analyse
from harness.report.confounds import confound_lines
from tests.harness.synthetic import Arm, build

BASE = Arm("base")


def listed(candidate):
    blocks = 5 if candidate.failed_blocks else 2
    (comparison,) = analyse(*build([BASE, candidate], [("base", candidate.name)], blocks=blocks)).compared
    return confound_lines(comparison.confounds)


def test_arms_that_differ_in_nothing_have_no_confounds():
    assert listed(Arm("same")) == []


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (Arm("c", config={"data.batch_size": 16}), "undeclared configuration: data.batch_size is 8 against 16"),
        (Arm("c", config={"model.layers": 2}), "undeclared configuration: model.layers is None against 2"),
        (Arm("c", trained=1000), "useful tokens: 93 % of the positions"),
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


def test_declared_differences_are_not_listed():
    assert listed(Arm("c", declared={"data.batch_size": 16})) == []
    assert listed(Arm("c", declared={"compute.threads": 1}, facts={"threads": 1})) == []
    assert listed(Arm("c", declared={"data.tokenizer.train.vocab_size": 500}, facts={"vocab_size": 500})) == []


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
    assert lines == ["undeclared configuration: data.batch_sizes is None against 1"]


def test_a_difference_in_one_block_only_is_listed_once():
    study, runs = build([BASE, Arm("c")], [("base", "c")])
    runs[-1] = replace(runs[-1], record=replace(runs[-1].record, session="another"))
    (comparison,) = analyse(study, runs).compared
    assert confound_lines(comparison.confounds) == ["not alternated in time: different sessions in block 4"]


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
        f"{key} is not the same in all blocks of {name}: its data was changed meanwhile" for name in ("base", "c")
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
        f"the {whose}'s own code is not the same in all blocks of c: it was edited meanwhile",
        f"{whose}_fingerprint is 'a' against 'b'",
    ]


def test_flatten_keeps_empty_sections():
    assert flatten({"a": {"b": 1, "c": {}}, "d": None}) == {"a.b": 1, "a.c": {}, "d": None}
