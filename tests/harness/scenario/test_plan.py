"""From a scenario to its runs: resolution, controls, comparisons, selection, order."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from harness.scenario.model import Scenario
from harness.scenario.plan import Plan, describe, make_plan
from harness.study.records import ComparisonRecord
from trainer.errors import InputError


def plan(selection: tuple[str, ...] = (), **fields: Any) -> Plan:
    settings: dict[str, Any] = {"name": "x", "question": "q", "arms": {"text": None, "tokens": {"steps": 3}}} | fields
    return make_plan(Scenario.model_validate(settings), "x.yaml", selection)


def names(made: Plan) -> list[str]:
    return [arm.name for arm in made.arms]


def test_base_then_matrix_then_arm_then_control() -> None:
    made = plan(
        base={"data": {"workers": 4, "inject": {"read_ms": 1}}, "steps": 7, "compute.threads": 2},
        arms={"text": None, "tokens": {"data.path": "tokens-padded", "data.inject.pack_ms": 2}},
        matrix={"data.batch_size": [1, 2], "data.inject.read_ms": [5]},
        controls=["ideal-data", "data-only"],
    )
    arms = {arm.name: arm for arm in made.arms}
    plain = arms["tokens@batch_size=2,read_ms=5"]
    assert (plain.config.steps, plain.config.compute.threads, plain.config.data.workers) == (7, 2, 4)
    assert plain.config.data.path == "tokens-padded"
    assert (plain.config.data.inject.read_ms, plain.config.data.inject.pack_ms) == (5, 2)
    assert plain.declared == {
        "data.batch_size": 2,
        "data.inject.read_ms": 5,
        "data.path": "tokens-padded",
        "data.inject.pack_ms": 2,
    }
    ideal = arms[f"{plain.name}+ideal-data"]
    assert (ideal.control, ideal.of) == ("ideal-data", plain.name)
    assert (ideal.config.data.replay, ideal.config.data.workers, ideal.config.data.inject) == (True, 0, None)
    assert ideal.config.compute == plain.config.compute
    assert ideal.declared == {
        "data.batch_size": 2,
        "data.inject": None,
        "data.path": "tokens-padded",
        "data.replay": True,
        "data.workers": 0,
    }
    only = arms[f"{plain.name}+data-only"]
    assert (only.config.compute.work, only.config.compute.inject) == ("none", None)
    assert only.config.data == plain.config.data


def test_part_of_a_section_is_laid_over_its_default() -> None:
    config = plan(base={"data.corpus.documents": 40}).arms[0].config
    assert (config.data.corpus.builtin, config.data.corpus.documents) == ("python-docs", 40)
    config = plan(base={"data.tokenizer.pretrained": "x"}).arms[0].config
    assert (config.data.tokenizer.train, config.data.tokenizer.pretrained) == (None, "x")


def test_an_a_a_control_for_baselines_only_and_it_is_identical() -> None:
    made = plan(arms={"a": None, "b": {"steps": 3}, "c": {"steps": 4}}, controls=["a-a"])
    assert names(made) == ["a", "a+a-a", "b", "c"]
    first, control = made.arms[:2]
    assert (control.config, control.declared, control.of) == (first.config, first.declared, "a")
    both = plan(
        arms={"a": None, "b": {"steps": 3}, "c": {"steps": 4}},
        controls=["a-a"],
        compare=[{"baseline": "c", "candidate": "a"}, {"baseline": "b", "candidate": "a"}],
    )
    assert names(both) == ["a", "b", "b+a-a", "c", "c+a-a"]
    assert names(plan(arms={"only": None}, controls=["a-a"])) == ["only", "only+a-a"]
    claims = [{"claim": "pool", "arm": "c", "baseline": "b"}, {"claim": "sync share", "arm": "c"}]
    claimed = plan(arms={"a": None, "b": {"steps": 3}, "c": {"steps": 4}}, compare=[], claims=claims, controls=["a-a"])
    assert names(claimed) == ["a", "a+a-a", "b", "b+a-a", "c"]


class TestDose:
    def test_three_doses_of_each_baseline_with_one_key_each(self) -> None:
        made = plan(controls=["dose"], repeats=2)
        assert names(made) == ["text", *(f"text+dose-tokenize-{k}" for k in (1, 2, 4)), "tokens"]
        arm, *doses = made.arms[:4]
        assert [dose.control for dose in doses] == ["dose-tokenize-1", "dose-tokenize-2", "dose-tokenize-4"]
        assert [dose.config.data.extra_tokenizations for dose in doses] == [1, 2, 4]
        for dose, k in zip(doses, (1, 2, 4), strict=True):
            assert (dose.of, dose.declared) == ("text", {"data.extra_tokenizations": k})
            undosed = dose.config.data.model_copy(update={"extra_tokenizations": 0})
            assert dose.config.model_copy(update={"data": undosed}) == arm.config
        assert all(sorted(block) == sorted(names(made)) for block in made.blocks)

    def test_what_is_dosed(self) -> None:
        made = plan(arms={"a": None}, controls=["a-a", "dose", "dose"], dose=["device", "read", "device"])
        assert names(made) == ["a", "a+a-a", *(f"a+dose-{what}-{k}" for what in ("device", "read") for k in (1, 2, 4))]
        assert [arm.config.compute.extra_forwards for arm in made.arms] == [0, 0, 1, 2, 4, 0, 0, 0]
        assert [arm.config.data.extra_reads for arm in made.arms] == [0, 0, 0, 0, 0, 1, 2, 4]

    def test_every_baseline_of_a_comparison_and_at_every_point(self) -> None:
        made = plan(
            arms={"a": None, "b": None, "c": None},
            matrix={"seed": [1, 2]},
            compare=[{"baseline": "b", "candidate": "a"}, {"baseline": "c", "candidate": "b"}],
            controls=["dose"],
        )
        assert {arm.of for arm in made.arms if arm.control} == {
            f"{name}@seed={seed}" for name in "bc" for seed in (1, 2)
        }
        assert len(made.arms) == 6 + 4 * 3

    @pytest.mark.parametrize(("arm", "dosed"), [
        ({"data.path": "tokens-padded"}, {"read", "device"}),
        ({"data.path": "tokens-stream", "data.inject.tokenize_ms": 1}, {"tokenize", "read", "device"}),
        ({"data.replay": True}, {"device"}),
        ({"data.replay": True, "data.inject.pack_ms": 1}, {"device"}),
        ({"data.replay": True, "data.inject.tokenize_ms": 1}, {"tokenize", "device"}),
        ({"data.replay": True, "data.inject.read_ms": 1}, {"read", "device"}),
        ({"compute.work": "none"}, {"tokenize", "read"}),
        ({"data.replay": True, "compute.work": "none"}, set()),
    ])  # fmt: skip
    def test_work_that_an_arm_does_not_have_is_not_dosed(self, arm: dict[str, Any], dosed: set[str]) -> None:
        made = plan(arms={"a": arm}, controls=["dose"], dose=["tokenize", "read", "device"])
        controls = [one.control for one in made.arms if one.control]
        assert {control.split("-")[1] for control in controls} == dosed
        assert len(controls) == 3 * len(dosed)

    def test_an_arm_that_repeats_its_work_gets_so_many_times_that(self) -> None:
        made = plan(arms={"a": {"data.extra_tokenizations": 2}}, controls=["dose"])
        assert [arm.config.data.extra_tokenizations for arm in made.arms] == [2, 5, 8, 14]  # 3, 6, 9, 15 in all
        message = (
            r"^x\.yaml: controls: dose: data\.extra_tokenizations of a would be 69 \(4 times its own 14 more\); "
            r"allowed: at most 64$"
        )
        with pytest.raises(InputError, match=message):
            plan(arms={"a": {"data.extra_tokenizations": 13}}, controls=["dose"])

    def test_doses_count_as_arms(self) -> None:
        arms = {f"a{i}": None for i in range(40)}
        pairs = [{"baseline": f"a{i}", "candidate": "a39"} for i in range(39)]
        assert len(plan(arms=arms, compare=pairs, controls=["dose"]).arms) == 40 + 39 * 3
        with pytest.raises(InputError, match=r"274 arms \(40 without their controls\); at most 256$"):
            plan(arms=arms, compare=pairs, controls=["dose"], dose=["tokenize", "read"])

    def test_an_unknown_dose_or_none_is_refused(self) -> None:
        with pytest.raises(ValueError, match="'tokenize', 'read' or 'device'"):
            plan(dose=["pack"])
        with pytest.raises(ValueError, match="at least 1 item"):
            plan(dose=[])


def test_the_first_arm_is_the_default_baseline_at_every_point() -> None:
    made = plan(arms={"a": None, "b": None, "c": None}, matrix={"seed": [1, 2]})
    assert made.comparisons == tuple(
        ComparisonRecord(f"a@seed={seed}", f"{other}@seed={seed}") for other in "bc" for seed in (1, 2)
    )


def test_declared_comparisons_and_exact_names() -> None:
    made = plan(
        matrix={"seed": [1, 2]},
        compare=[
            {"baseline": "tokens", "candidate": "text"},
            {"baseline": "text@seed=1", "candidate": "text@seed=2"},
            {"baseline": "tokens@seed=1", "candidate": "text@seed=1"},
        ],
    )
    assert made.comparisons == (
        ComparisonRecord("tokens@seed=1", "text@seed=1"),
        ComparisonRecord("tokens@seed=2", "text@seed=2"),
        ComparisonRecord("text@seed=1", "text@seed=2"),
    )


@pytest.mark.parametrize(("matrix", "suffix"), [
    ({"data.corpus.parquet": ["a/b c*.parquet"]}, "@parquet=a-b-c-.parquet"),
    ({"data.shuffle": [True]}, "@shuffle=true"),
    ({"data.inject": [None]}, "@inject=none"),
    ({"data.inject": [{"read_ms": 1.5, "how": "sleep"}]}, "@inject=read_ms-1.5-how-sleep"),
    ({"data.inject.how": ["busy"], "compute.inject.how": ["sleep"]}, "@data.inject.how=busy,compute.inject.how=sleep"),
])  # fmt: skip
def test_matrix_points_name_folders(matrix: dict[str, list[Any]], suffix: str) -> None:
    assert names(plan(arms={"a": None}, matrix=matrix)) == [f"a{suffix}"]


class TestSelection:
    FIELDS: ClassVar[dict[str, Any]] = {
        "arms": {"text-padded": None, "text-stream": {"steps": 3}, "tokens-padded": {"steps": 4}},
        "matrix": {"seed": [1, 2]},
        "controls": ["a-a", "ideal-data"],
    }

    def test_a_pattern_before_the_matrix_keeps_controls_and_complete_comparisons(self) -> None:
        made = plan(("text-*",), **self.FIELDS)
        assert {arm.name for arm in made.arms if arm.control is None} == {
            f"text-{kind}@seed={seed}" for kind in ("padded", "stream") for seed in (1, 2)
        }
        assert {arm.of for arm in made.arms if arm.control == "a-a"} == {"text-padded@seed=1", "text-padded@seed=2"}
        assert [pair.candidate for pair in made.comparisons] == ["text-stream@seed=1", "text-stream@seed=2"]
        assert {name for block in made.blocks for name in block} == set(names(made))

    def test_exact_names_and_several_patterns(self) -> None:
        made = plan(("text-stream", "*@seed=2"), **self.FIELDS)
        assert [arm.name for arm in made.arms if arm.control is None] == [
            "text-padded@seed=2",
            "text-stream@seed=1",
            "text-stream@seed=2",
            "tokens-padded@seed=2",
        ]

    def test_no_match(self) -> None:
        with pytest.raises(InputError) as caught:
            plan(("text-padde",), **self.FIELDS)
        known = "text-padded, text-stream, tokens-padded"
        assert str(caught.value) == f"--arm text-padde: no arm matches; did you mean 'text-padded'? arms: {known}"


def test_every_block_holds_every_arm_once_in_a_seeded_order() -> None:
    arms = {f"a{i}": {"seed": i} for i in range(12)}
    made, again, other = (plan(arms=arms, repeats=4, seed=seed) for seed in (1, 1, 2))
    assert made.blocks == again.blocks
    assert made.blocks != other.blocks
    assert all(sorted(block) == sorted(arms) for block in made.blocks)
    assert len(set(made.blocks)) == 4
    assert plan(arms=arms, repeats=2, seed=1).blocks == made.blocks[:2]


def test_too_many_with_controls() -> None:
    arms = {f"a{i}": None for i in range(90)}
    assert len(plan(arms=arms).arms) == 90
    with pytest.raises(InputError, match=r"^x\.yaml: arms: 270 arms \(90 without their controls\); at most 256$"):
        plan(arms=arms, controls=["ideal-data", "data-only"])


def test_a_scenario_made_in_code_is_validated_too() -> None:
    """load_scenario says it in one line; without it the configuration itself refuses the key."""
    with pytest.raises(ValidationError, match=r"data\.bach_size\n  Extra inputs are not permitted"):
        plan(arms={"text": {"data.bach_size": 2}})


def test_a_resolved_scenario_survives_json() -> None:
    made = plan(matrix={"seed": [1, 2]}, controls=["a-a"], base={"data.batch_size": 2})
    again = Scenario.model_validate_json(made.scenario.model_dump_json())
    assert make_plan(again, "x.yaml") == made


def test_the_description_shows_every_run_in_order() -> None:
    made = plan(matrix={"data.batch_size": [1]}, controls=["ideal-data"], repeats=2)
    *table, counts = describe(made).splitlines()
    assert table[0].split() == [
        *("run", "block", "arm", "control", "data.batch_size", "data.replay", "data.workers", "data.inject", "steps")
    ]
    order = [(str(block), name) for block, names in enumerate(made.blocks) for name in names]
    assert [(row.split()[1], row.split()[2]) for row in table[1:]] == order
    assert [row.split()[0] for row in table[1:]] == [str(number) for number in range(1, 9)]
    starts = {row.index("1  ", row.index("@") + 13) for row in table[1:]}
    assert starts == {table[0].index("data.batch_size")}
    assert counts == "8 runs: 2 blocks x 4 (2 arms, 2 controls); 1 comparison"


def test_every_arm_is_looked_into_once_and_last() -> None:
    made = plan(probes={"torch_profiler": True}, repeats=3, controls=["a-a"])
    profiled = [arm.name for arm in made.arms if arm.control == "profiled"]
    assert profiled == ["text+profiled", "tokens+profiled"]
    assert list(made.blocks[0][-2:]) == profiled
    assert not any(name in block for block in made.blocks[1:] for name in profiled)
    assert describe(made).splitlines()[-1] == "11 runs: 3 blocks x 3 (2 arms, 1 control) and 2 profiled; 1 comparison"


def test_probes_are_calibrated_on_the_first_baseline() -> None:
    made = plan(probes={"calibrate": True, "py_spy": {"rate_hz": 50}, "nvml": False})
    controls = [arm.name for arm in made.arms if arm.control and arm.control != "profiled"]
    assert controls == ["text+bare", "text+with-ledger", "text+with-host", "text+with-py_spy"]


def test_probes_that_are_off_are_not_calibrated_and_look_into_nothing() -> None:
    made = plan(probes={"calibrate": True, "host": False, "nvml": False})
    assert [arm.name for arm in made.arms if arm.control] == ["text+bare", "text+with-ledger"]
    assert all(arm.control is None for arm in plan(probes={"calibrate": False, "torch_profiler": False}).arms)


class TestRequires:
    ARMS: ClassVar[dict[str, Any]] = {"text": None, "odd": {"steps": 3}, "tokens": {"steps": 4}}

    def test_an_arm_that_lacks_a_module_is_left_out_with_its_comparisons(self) -> None:
        made = plan(arms=self.ARMS, requires={"odd": ["json", "no_such_module"]}, controls=["data-only"])
        assert names(made) == ["text", "text+data-only", "tokens", "tokens+data-only"]
        assert made.left_out == {"odd": ("no_such_module",)}
        assert made.comparisons == (ComparisonRecord("text", "tokens"),)
        assert "odd is left out: it needs no_such_module, which is not installed" in describe(made)

    def test_an_arm_whose_modules_are_there_is_run(self) -> None:
        made = plan(arms=self.ARMS, requires={"odd": ["json"]})
        assert names(made) == ["text", "odd", "tokens"]
        assert not made.left_out

    def test_at_every_point_of_a_matrix(self) -> None:
        made = plan(arms=self.ARMS, requires={"odd": ["no_such_module"]}, matrix={"seed": [1, 2]})
        assert [*made.left_out] == ["odd@seed=1", "odd@seed=2"]

    def test_nothing_left_is_refused(self) -> None:
        with pytest.raises(InputError, match="every arm needs a missing module; odd needs no_such_module"):
            plan(("odd",), arms=self.ARMS, requires={"odd": ["no_such_module"]})
