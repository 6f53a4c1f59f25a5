"""Collects the facts of a run's record: its model, device and data, and the fingerprints of these."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from harness.launch.nodes import nodes_of
from harness.launch.protocol import DataMessage
from harness.study.records import RunFacts
from trainer.compute.base import Compute
from trainer.config import TrainerConfig
from trainer.errors import InputError
from trainer.model_files import model_files
from trainer.user_code import fingerprint

if TYPE_CHECKING:
    from trainer.data.prepare import Prepared
    from trainer.devices.calibrate import ProfileFacts


def facts_of_run(config: TrainerConfig, compute: Compute, prepared: Prepared, model: str | None) -> RunFacts:
    """Return the facts for the run's record. ``model``: its :func:`model_fingerprint`."""
    import torch

    from trainer.compute.emulated import assumptions
    from trainer.data.dataset import iterable_sources
    from trainer.data.manifest import read_manifest
    from trainer.devices.estimates import flops_per_token, parameters
    from trainer.model import shape_of

    computed = config.compute.work == "model"  # Without a model there are no FLOPs to report.
    # For a model of a factory or without a formula, only the number of parameters is known.
    shape = shape_of(config.model, prepared.vocab_size, config.data.sequence_length)
    length, convention = config.data.sequence_length, config.compute.flops_convention
    flops = flops_per_token(shape, length, convention) if computed and shape is not None else None
    device = config.compute.emulated if computed else None
    profile = _device_profile(config, compute)
    stored = None if prepared.pretokenized is None else read_manifest(Path(prepared.pretokenized))
    nulls = {"emulation", "profile", "parameters", "flops_per_token"}  # keys that run.json always has, even if unknown
    return RunFacts(
        emulation=assumptions(config, shape) if device is not None and shape is not None else None,
        **asdict(profile),
        parameters=None if not computed else compute.parameters if shape is None else parameters(shape),
        flops_per_token=flops,
        flops_convention=None if flops is None else convention,
        attention=compute.attention,
        vocab_size=config.model.vocab_size if shape is None else shape.vocab_size,
        model_fingerprint=model,
        device=compute.device,
        asynchronous=compute.asynchronous,
        emulated=compute.emulated,
        device_count=config.ranks if compute.asynchronous else 1,
        ranks=config.ranks if config.ranks > 1 else None,
        nodes=nodes if (nodes := nodes_of(config)) > 1 else None,
        parallel=config.launch.parallel if config.launch is not None and config.ranks > 1 else None,
        threads=torch.get_num_threads(),
        workers=config.data.workers,
        cores=len(os.sched_getaffinity(0)),
        torch=torch.__version__,
        tokenizer_fingerprint=prepared.tokenizer.fingerprint,
        corpus_fingerprint=prepared.corpus.fingerprint,
        tokenizer_engine=prepared.tokenizer.engine or None,
        tokenizer_proof=None if prepared.tokenizer.proof is None else prepared.tokenizer.proof.text,
        iterable=iterable_sources.get(config.data.source or ""),
        stored_bytes=None if stored is None else stored.data_bytes,
        text_bytes=None if stored is None else prepared.corpus.text_bytes,
        questions_fingerprint=_questions_fingerprint(config),
        nulls=frozenset(nulls if profile.profile is None else {*nulls, "price_per_hour_usd"}),
    )


def _questions_fingerprint(config: TrainerConfig) -> str | None:
    from trainer.data.cache import file_fingerprint
    from trainer.files import expanded

    if config.evaluation is None or (questions := config.evaluation.multiple_choice) is None:
        return None
    return file_fingerprint(expanded(questions.path))


def _device_profile(config: TrainerConfig, compute: Compute) -> ProfileFacts:
    """Return peak FLOP/s and price of the run's device from its device profile, or the reason why they are unknown."""
    import torch

    from trainer.devices.calibrate import ProfileFacts, facts_of, profile_facts
    from trainer.devices.profiles import load_profile

    precision = config.compute.precision
    if config.compute.work == "none":
        return ProfileFacts(profile_reason="no model is computed")
    device = config.compute.emulated
    if device is not None:
        fixed = device.kernels.forward_ms, device.kernels.backward_ms
        if device.speed != 1 or device.recorded is not None or fixed != (None, None):
            reason = "the emulated kernels do not take the times of its profile (speed, fixed or recorded ones)"
            return ProfileFacts(profile_reason=reason)
        return facts_of(load_profile(device.emulated), precision)
    return profile_facts(compute.device, compute.device == "cpu", precision, torch.get_num_threads())


def peak_device_bytes(compute: Compute | None) -> int | None:
    """Return the peak bytes of all tensors on CUDA since the start of the process; None if CUDA is not used."""
    import torch

    if compute is None or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    return int(torch.cuda.max_memory_allocated())


def check_unchanged(config: TrainerConfig, prepared: Prepared, model: str | None, data: DataMessage | None) -> None:
    """Raise InputError if the run's data, tokenizer or model changed since the study's start (``data``, if any)."""
    if data is None:
        return
    if (engine := data.get("engine", prepared.tokenizer.engine)) != prepared.tokenizer.engine:
        raise InputError(
            f"the tokenizer's engine changed since the study began ({engine}, now "
            f"{prepared.tokenizer.engine}), and a study must not mix two; set data.tokenizer.engine"
        )
    corpus = "code of data.source" if config.data.source is not None else "corpus"
    for part, name, present, begun in (
        (corpus, config.data.corpus.parquet or prepared.corpus.name, prepared.corpus.fingerprint, data["corpus"]),
        ("tokenizer", prepared.tokenizer.kind, prepared.tokenizer.fingerprint, data["tokenizer"]),
        (*_model_named(config), model, data.get("model", model)),
    ):
        if present != begun:
            raise InputError(
                f"the {part} {name} changed since the study began (fingerprint {begun}, now {present}), and a study "
                "must not mix the two; do not change it while a study runs, and start a new study"
            )


def model_fingerprint(config: TrainerConfig, others: Iterable[str] = ()) -> str | None:
    """Return a digest of the files that define the model (``others``: its own imports); None for a preset."""
    if (factory := config.model.factory) is not None:
        return fingerprint("model.factory", factory, others=others)
    files = model_files(config.model)
    return None if files is None else files.fingerprint


def _model_named(config: TrainerConfig) -> tuple[str, str | None]:
    """Return (kind, name) of the model for an error message, such as ("code of model.factory", "my:model")."""
    if config.model.factory is not None or (files := model_files(config.model)) is None:
        return "code of model.factory", config.model.factory
    return f"content of {files.key}", files.name
