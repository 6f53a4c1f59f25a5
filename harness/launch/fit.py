"""Check for ``harness doctor SCENARIO`` what ``harness run`` would refuse, without preparing data.

If the model's size depends on the tokenizer, both ends are checked: no vocabulary, and ``data.tokenizer.train``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from harness.launch.needs import FORCIBLE, MemoryUse, choose_interleave, memory_uses, need_of
from harness.launch.out_of_memory import largest_vocabulary
from harness.launch.preparation import check_devices
from harness.machine.check import Check, count, fail, ok, warn
from harness.machine.software import missing_commands
from harness.scenario.plan import Plan
from harness.study.contract import PROFILED
from trainer.config import TrainerConfig
from trainer.data import pretrained
from trainer.data.corpus import check_there
from trainer.data.tokenizers import sentencepiece_file
from trainer.errors import InputError
from trainer.model_files import model_files, objective_of
from trainer.user_code import files

_CORRECT = "correct it in the scenario"
PLACES = {"memory": "memory need", "GPU memory": "GPU need"}  # name of each check


def check_fit(plan: Plan) -> Iterator[Check]:
    """Yield the checks that ``plan`` can run here: devices, files, memory, enough documents for all workers."""
    configs = {arm.name: arm.config for arm in plan.arms}
    in_jobs = any(config.launch is not None and config.launch.slurm is not None for config in configs.values())
    if in_jobs:
        yield check_jobs()
    yield from check_named(configs, in_jobs=in_jobs)
    unknown = next((name for name, config in configs.items() if largest_vocabulary(config) is None), None)
    try:
        least, most = _uses(plan, lambda _: 0), _uses(plan, lambda config: largest_vocabulary(config) or 0)
    except InputError as error:
        yield fail("model", str(error), _CORRECT)
    else:
        for place in PLACES:
            yield from check_memory_need(
                place,
                [use for use in least if use.where == place],
                [use for use in most if use.where == place],
                unknown,
            )
    yield from check_documents(configs)


def check_jobs() -> Check:
    """Return the check that runs can be submitted to Slurm from this machine. The jobs' nodes are not checked."""
    if missing := missing_commands():
        fix = "where jobs are submitted (a login node), or harness run --here"
        return fail("slurm need", f"launch.slurm: no {', '.join(missing)} here", fix)
    return ok("slurm need", "runs are submitted as jobs; memory is compared with this machine's, not with the nodes'")


def check_named(configs: Mapping[str, TrainerConfig], *, in_jobs: bool = False) -> Iterator[Check]:
    """Yield a failure for each unusable device, profile, module or file. ``in_jobs``: True to skip devices."""
    for topic, (check, fix) in _NAMED.items():
        if in_jobs and check is _check_device:
            continue
        refused: dict[str, str] = {}
        for name, config in configs.items():
            try:
                check(name, config)
            except InputError as error:
                refused.setdefault(str(error).removeprefix(f"arm {name}: "), name)
        for reason, name in refused.items():
            yield fail(topic, f"arm {name}: {reason}", fix)


def _check_device(name: str, config: TrainerConfig) -> None:
    check_devices({name: config})
    if config.compute.emulated is not None and config.compute.work == "model":
        from trainer.compute.build import emulated_shape
        from trainer.compute.emulated import build_emulated

        build_emulated(config, emulated_shape(config, 0))


def _check_code(_name: str, config: TrainerConfig) -> None:
    for key, function in config.user_functions:
        files(key, function)  # raises without such a module


def _check_files(_name: str, config: TrainerConfig) -> None:
    model_files(config.model)
    objective_of(config.model)
    corpus, tokenizer = config.data.corpus, config.data.tokenizer
    if config.data.source is not None:
        return  # The files that it reads are unknown.
    check_there(corpus)
    if config.evaluation is not None and config.evaluation.corpus is not None:
        try:
            check_there(config.evaluation.corpus)
        except InputError as error:
            raise InputError(str(error).replace("data.corpus", "evaluation.corpus")) from error
    if tokenizer.pretrained is not None:
        pretrained.check_there(tokenizer.pretrained)
    if tokenizer.sentencepiece is not None:
        sentencepiece_file(tokenizer.sentencepiece)


_ELSEWHERE = f"{_CORRECT}, or call harness from another folder"  # Names may refer to that folder.
_NAMED: Mapping[str, tuple[Callable[[str, TrainerConfig], None], str]] = {
    "device": (_check_device, _CORRECT),
    "own code": (_check_code, _ELSEWHERE),
    "files": (_check_files, _ELSEWHERE),
}


def check_memory_need(
    where: str, least: list[MemoryUse], most: list[MemoryUse], unknown: str | None
) -> Iterator[Check]:
    """Yield the check of ``where``, by uses with the smallest and largest vocabulary of the arm ``unknown``."""
    name = PLACES[where]
    if not most:
        if where == "memory":
            yield ok(name, "not compared: the free memory is unknown here")
        return
    worst = max(most, key=lambda use: use.takes.high_bytes)
    refused = next((use for use in most if use.is_refused), None)
    if any(use.is_refused for use in least):
        use = refused or next(use for use in least if use.is_refused)
        yield fail(name, use.refusal, f"{use.advice}{FORCIBLE}")
    elif not worst.takes.high_bytes:  # of the card
        return
    elif unknown is not None:
        yield ok(name, f"unknown: the size of the model of arm {unknown} depends on the tokenizer")
    elif own := next((need.arm for use in most for need in use.group if need.own_model), None):
        yield ok(name, f"unknown: the size of the model of arm {own} is known only after it is built")
    elif refused is not None:
        finding = f"{refused.refusal}; less if the tokenizer learns fewer tokens than data.tokenizer.train asks for"
        yield warn(name, finding, f"{refused.advice}{FORCIBLE}")
    elif worst.may_not_fit:
        yield warn(name, f"{worst.name} may not fit: needs {worst.range_text}", worst.advice)
    else:
        yield ok(name, f"{worst.name}: {worst.range_text}")


def check_documents(configs: Mapping[str, TrainerConfig]) -> Iterator[Check]:
    """Yield the check that ``data.corpus.documents`` has a document for each worker of each rank, if limited."""
    limited = {
        name: (shards, config.data.corpus.documents)
        for name, config in configs.items()
        if (shards := _shards(config)) and config.data.source is None and config.data.corpus.documents is not None
    }
    if not limited:
        return
    worst = max(limited, key=lambda name: limited[name][0] - limited[name][1])
    shards, documents = limited[worst]
    ranks, workers = configs[worst].ranks, configs[worst].data.workers
    rank_text = f"{count(ranks, 'rank')} of " if ranks > 1 and workers else ""
    consumers = count(workers, "loader worker") if workers else count(ranks, "rank")
    finding = f"arm {worst}: {rank_text}{consumers} for at most {count(documents, 'document')}"
    if shards <= documents:
        yield ok("documents", finding)
    else:
        keys = "data.workers" if ranks == 1 else "launch.torchrun.nproc" + " x data.workers" * bool(workers)
        fix = f"{keys}: at most {documents}, or a larger data.corpus.documents"
        yield fail("documents", f"{finding}: each {'worker' if workers else 'rank'} needs its own document", fix)


def _shards(config: TrainerConfig) -> int:
    """Return the number of processes that each read their own part of the documents; 0 if one process reads all."""
    return config.ranks * max(config.data.workers, 1) if config.ranks > 1 else config.data.workers


def _uses(plan: Plan, vocabulary: Callable[[TrainerConfig], int]) -> list[MemoryUse]:
    """Return the memory uses of ``plan``. ``vocabulary``: returns the vocabulary size to assume for a configuration."""
    needs = [need_of(arm.name, arm.config, vocabulary(arm.config)) for arm in plan.arms]
    profiled = {arm.name for arm in plan.arms if arm.control == PROFILED}
    measured = [need for need in needs if need.arm not in profiled]
    interleave, _ = choose_interleave(plan.scenario.interleave, measured)
    return list(memory_uses(needs, profiled, interleave))
