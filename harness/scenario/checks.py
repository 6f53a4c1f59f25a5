"""Finds the mistakes in a scenario of the right shape: in configurations, matrix, comparisons and size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import ValidationError

from harness.scenario.errors import Problem, did_you_mean, dotted_keys, problems_of
from harness.scenario.model import Claim, Compare, Scenario
from harness.scenario.overrides import DottedKeyError, edit_texts, expand, flatten, has
from harness.scenario.plan import Variant, count_arms, points, value_name, variants
from harness.scenario.yaml import MAX_ARMS, KeyPath
from trainer.config import TrainerConfig
from trainer.errors import InputError
from trainer.json_types import Json, JsonObject

MAX_FOLDER = 200  # bytes of an arm's folder name, before "+ideal-data"


def problems(scenario: Scenario) -> list[Problem]:
    """Return all problems of the parsed ``scenario``, unordered. A wrong matrix or too many arms end it early."""
    if too_many := list(_size(scenario)):
        return too_many
    matrix, base = list(_matrix(scenario)), list(_config(scenario.base, ("base",)))
    if matrix:
        return matrix + base
    mistakes = [
        *base,
        *compare_problems(list(scenario.arms), scenario.compare, scenario.matrix),
        *_claims(scenario),
        *_whatif(scenario),
        *_named_arms(scenario),
    ]
    try:
        everything = list(variants(scenario))
    except DottedKeyError as error:
        return [*mistakes, Problem(error.path, error.message)]
    mistakes += _overlaps(scenario)
    for variant in everything:
        mistakes += _variant(scenario, variant)
    return list(dict.fromkeys(mistakes))


def _size(scenario: Scenario) -> Iterator[Problem]:
    arms, count = len(scenario.arms), count_arms(scenario)
    if count > MAX_ARMS:
        times = f" ({arms} in arms x {count // arms} matrix points)" if scenario.matrix else ""
        key = "matrix" if arms <= MAX_ARMS else "arms"
        yield Problem((key,), f"{count} arms{times}; at most {MAX_ARMS}")


def _matrix(scenario: Scenario) -> Iterator[Problem]:
    keys, known_keys = list(scenario.matrix), dotted_keys(TrainerConfig)
    for key, values in scenario.matrix.items():
        for outer in keys:
            if key.startswith(f"{outer}."):
                yield Problem(("matrix", key), f"{outer} in the matrix already sets it")
        for name, times in Counter(map(value_name, values)).items():
            if times > 1:
                yield Problem(("matrix", key), f"{times} of its values give the same arm name ({name})")
        for index, value in enumerate(values):
            try:
                nested = expand({key: value})
            except DottedKeyError as error:
                yield Problem(("matrix", key), error.message)
                break
            for problem in _config(nested, ()):
                path: KeyPath = ("matrix", key, index) if key in known_keys else ("matrix", key)
                yield Problem(path, _relative(problem, key))


def _relative(problem: Problem, key: str) -> str:
    """Return the problem's message, preceded by the keys below the matrix key ``key`` if its value is a mapping."""
    beyond = ".".join(str(part) for part in problem.path[len(key.split(".")) :])
    return f"{beyond}: {problem.message}" if beyond else problem.message


def _config(nested: JsonObject, root: KeyPath) -> Iterator[Problem]:
    """Yield the problems of ``nested``, the part of a configuration at ``root``. Rules between keys come later."""
    try:
        TrainerConfig.model_validate(expand(nested), strict=True)
    except DottedKeyError as error:
        yield Problem((*root, *error.path), error.message)
    except ValidationError as error:
        for kind, problem in problems_of(error, TrainerConfig):
            if kind != "value_error":
                yield Problem((*root, *problem.path), problem.message)


def _variant(scenario: Scenario, variant: Variant) -> Iterator[Problem]:
    arm: KeyPath = ("arms", variant.arm)
    if len(variant.name.encode()) > MAX_FOLDER:
        yield Problem(arm, f"{variant.name}: longer than {MAX_FOLDER} bytes; shorten the arm or the matrix values")
    try:
        TrainerConfig.model_validate(variant.nested, strict=True)
    except ValidationError as error:
        for _, problem in problems_of(error, TrainerConfig):
            key = ".".join(str(part) for part in problem.path)
            if has(expand(scenario.arms[variant.arm] or {}), key):
                yield Problem((*arm, *problem.path), problem.message)
            elif not has(variant.point.values, key):
                yield Problem(("base", *problem.path), problem.message)
            else:
                axis = next(dotted for dotted in scenario.matrix if dotted.startswith(key) or key.startswith(dotted))
                yield Problem(("matrix", axis), f"{key}: {problem.message}")


def _whatif(scenario: Scenario) -> Iterator[Problem]:
    if not scenario.whatif:
        return
    from harness.scenario.edits import parse_edits  # brings numpy

    for index, edits in enumerate(scenario.whatif):
        if not edits:
            yield Problem(("whatif", index), "give at least one edit, such as ranks: 16")
            continue
        try:
            parse_edits(edit_texts(edits))
        except InputError as error:
            yield Problem(("whatif", index), str(error).removeprefix("--set "))


def _overlaps(scenario: Scenario) -> Iterator[Problem]:
    """Yield a problem for each arm that sets a key of the matrix: it would be the same at every matrix point."""
    for name, overrides in scenario.arms.items():
        for key in flatten(expand(overrides or {})):
            for axis in scenario.matrix:
                if axis == key or axis.startswith(f"{key}."):
                    yield Problem(
                        ("arms", name, *key.split(".")), f"the matrix also sets {axis}; remove it from one of them"
                    )


def compare_problems(
    arms: Sequence[str], compare: Sequence[Compare] | None, matrix: Mapping[str, Sequence[Json]]
) -> Iterator[Problem]:
    """Yield the problems of ``compare``: unknown arms, an arm with itself, a matrix point on one side only."""
    exact = _at_points(arms, matrix)
    for index, pair in enumerate(compare or ()):
        unknown = [side for side in ("baseline", "candidate") if getattr(pair, side) not in {*arms, *exact}]
        for side in unknown:
            yield _unknown_arm(("compare", index, side), getattr(pair, side), arms, exact)
        if unknown:
            continue
        if pair.baseline == pair.candidate:
            yield Problem(("compare", index), f"compares {pair.baseline} with itself; use the a-a control")
        if (pair.baseline in arms) != (pair.candidate in arms):
            yield Problem(("compare", index), "only one name has a matrix point; give it for both names or for none")


def _at_points(arms: Iterable[str], matrix: Mapping[str, Sequence[Json]]) -> list[str]:
    return [f"{arm}{point.suffix}" for arm in arms for point in points(matrix)]


def _unknown_arm(path: KeyPath, name: str, arms: Sequence[str], exact: Iterable[str] = ()) -> Problem:
    """Return the problem that ``name`` is no arm. ``exact``: further valid names, which the message does not list."""
    guess = did_you_mean(name, [*arms, *exact]) or ";"
    return Problem(path, f"no arm {name!r}{guess} arms: {', '.join(arms)}")


def _claims(scenario: Scenario) -> Iterator[Problem]:
    arms = _at_points(scenario.arms, scenario.matrix)
    for index, claim in enumerate(scenario.claims):
        for side, name in (("arm", claim.arm), ("baseline", claim.baseline)):
            if name is not None and name not in arms:
                yield _unknown_arm(("claims", index, side if isinstance(claim, Claim) else "arms"), name, arms)


def _named_arms(scenario: Scenario) -> Iterator[Problem]:
    """Yield a problem for each unknown arm in ``requires`` and ``isolated_baseline``, and one if ``isolated_baseline``
    is given without the data-only control.
    """
    before = list(scenario.arms)
    for name in scenario.requires:
        if name not in scenario.arms:
            yield _unknown_arm(("requires", name), name, before)
    named = scenario.isolated_baseline
    if named is None:
        return
    exact = _at_points(before, scenario.matrix)
    if named not in {*before, *exact}:
        yield _unknown_arm(("isolated_baseline",), named, before, exact)
    elif "data-only" not in scenario.controls:
        yield Problem(("isolated_baseline",), "needs the data-only control; add it to controls")
