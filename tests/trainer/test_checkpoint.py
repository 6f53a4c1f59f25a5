"""A training that is resumed from any of its checkpoints goes on with the same losses, bit for bit."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import threading
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.data.conftest import make_texts, write_parquet
from tests.trainer.test_loop import Losses
from trainer import checkpoint_folder, telemetry
from trainer.checkpoint import RandomStates, Saver, check_identity, identity, in_host_memory, load, parts_of
from trainer.checkpoint_folder import WholeState
from trainer.compute.build import build_compute
from trainer.config import CheckpointConfig, TrainerConfig
from trainer.data.loader import open_batches
from trainer.data.position import DataPosition, Position
from trainer.data.prepare import prepare
from trainer.errors import InputError
from trainer.loop import train

STEPS = 14


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TrainerConfig]:
    corpus = write_parquet(tmp_path_factory.mktemp("corpus") / "a.parquet", make_texts())

    def made(every: int = 5, keep: int = 9, asynchronous: bool = True, **changes: Any) -> TrainerConfig:
        data = {
            "corpus": {"parquet": str(corpus)},
            "tokenizer": {"train": {"vocab_size": 300}},
            "sequence_length": 16,
            "batch_size": 3,
            **changes.pop("data", {}),
        }
        return TrainerConfig.model_validate(
            {
                "model": {"preset": "gpt2-tiny", "layers": 1, "width": 16, "heads": 2},
                "data": data,
                "compute": {"threads": 1, "device": "cpu"},
                "optimizer": {"lr_warmup_steps": 9},
                "checkpoint": {"every_steps": every, "keep": keep, "asynchronous": asynchronous},
                "log_every": 4,
                **changes,
            }
        )

    return made


def run(config: TrainerConfig, folder: Path, steps: int, resume: bool = False) -> tuple[dict[int, float], Losses]:
    """Train up to ``steps`` steps in all; the losses of this part."""
    prepared = prepare(config.data)
    found = checkpoint_folder.newest(folder) if resume else None
    assert config.checkpoint is not None
    store = WholeState()
    states = {} if found is None else found.states(store)
    workers = config.data.workers
    position = DataPosition.from_state(states["data"], workers) if found else DataPosition(max(1, workers))
    recorder = Losses()
    telemetry.attach(recorder)
    try:
        with open_batches(config.data, prepared, config.seed, start=position) as batches:
            compute = build_compute(config, prepared.tokenizer.vocab_size)
            parts = parts_of(compute.parts(), position)
            if found is not None:
                load(parts, states, found)
            saver = Saver(config.checkpoint, folder, parts, lambda: {"config": identity(config)}, store)
            first = 0 if found is None else found.steps
            loop = train(config, compute, batches, first, saver)
            for _ in range(first, steps):
                next(loop)
            loop.close()
            saver.wait()
    finally:
        telemetry.attach(None)
    return recorder.losses, recorder


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({"path": "text-padded", "access": "scalar"}, marks=(pytest.mark.slow, pytest.mark.nightly)),
        {"path": "text-stream", "access": "zero-copy"},
        {"path": "tokens-padded", "access": "zero-copy"},
        pytest.param({"path": "tokens-stream", "access": "scalar"}, marks=(pytest.mark.slow, pytest.mark.nightly)),
        {"replay": True},
    ],
    ids=str,
)
def test_losses_go_on_bit_for_bit(make: Callable[..., TrainerConfig], tmp_path: Path, data: dict[str, Any]) -> None:
    whole, recorder = goes_on(make(data=data, optimizer={"accumulation": 2}), tmp_path)
    assert len(set(whole.values())) == len(whole) == STEPS
    assert recorder.names.count("checkpoint") == 2


def goes_on(config: TrainerConfig, folder: Path) -> tuple[dict[int, float], Losses]:
    """Train, resume from the checkpoint of step 5, and compare the losses. Return those of the whole training."""
    whole, recorder = run(config, folder, STEPS)
    shutil.rmtree(checkpoint_folder.path_of(folder, 10))
    torch.manual_seed(99)  # what this process drew makes no difference
    resumed, _ = run(config, folder, STEPS, resume=True)
    assert resumed == {step: loss for step, loss in whole.items() if step >= 5}
    return whole, recorder


def test_a_scaled_loss_goes_on_with_its_scale_and_its_skipped_steps(make, tmp_path, monkeypatch) -> None:
    """A scale that doubles every second step soon overflows fp16: a scaler that began anew would skip other steps."""
    begin = torch.amp.GradScaler.__init__
    monkeypatch.setattr(torch.amp.GradScaler, "__init__", partialmethod(begin, init_scale=2.0**40, growth_interval=2))
    config = make(compute={"precision": "fp16"})
    goes_on(config, tmp_path)
    assert checkpoint_folder.read(checkpoint_folder.path_of(tmp_path, 5)).states(WholeState())["scaler"]["skipped"] > 0


@pytest.mark.slow
@pytest.mark.nightly
def test_losses_go_on_with_workers(make: Callable[..., TrainerConfig], tmp_path: Path) -> None:
    goes_on(make(data={"path": "text-stream", "workers": 2}), tmp_path)


def test_what_is_saved_beside_the_steps_is_the_state_of_its_step(make, tmp_path) -> None:
    """A thread that writes late must not write what later steps made of the weights."""
    written = threading.Event()
    config = make()
    prepared = prepare(config.data)
    assert config.checkpoint is not None

    class Late(WholeState):
        def write(self, folder: Path, states: Any) -> Any:
            written.wait(240)
            return super().write(folder, states)

    with open_batches(config.data, prepared, 0) as batches:
        compute = build_compute(config, prepared.tokenizer.vocab_size)
        model = compute.parts()["model"]
        saver = Saver(config.checkpoint, tmp_path, compute.parts(), dict, Late())
        loop = train(config, compute, batches, 0, saver)
        for _ in range(5):
            next(loop)
        then = {name: one.clone() for name, one in model.state_dict().items()}
        for _ in range(3):
            next(loop)
        assert not checkpoint_folder.written(tmp_path)
        written.set()
        saver.wait()
        loop.close()
    weights = checkpoint_folder.read(checkpoint_folder.path_of(tmp_path, 5)).states(WholeState())["model"]
    assert weights.keys() == then.keys()
    assert all(torch.equal(weights[name], one) for name, one in then.items())
    assert not all(torch.equal(weights[name], one) for name, one in model.state_dict().items())


def test_transformers_reads_the_weights(make: Callable[..., TrainerConfig], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    config = make()
    prepared = prepare(config.data)
    assert config.checkpoint is not None
    model = build_compute(config, prepared.tokenizer.vocab_size).parts()["model"]
    Saver(config.checkpoint, tmp_path, {"model": model}, dict, WholeState(model)).save(5)
    path = checkpoint_folder.path_of(tmp_path, 5)
    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join(60)
    assert "lm_head.weight" not in load_file(path / "model.safetensors")  # tied: it is written once
    read = AutoModelForCausalLM.from_pretrained(path)
    ids = torch.arange(12)[None]
    model.eval()
    with torch.no_grad():
        assert torch.equal(read(input_ids=ids).logits, model(input_ids=ids).logits)


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "about", "about gone"])
@pytest.mark.parametrize("file", ["model.safetensors", "state.pt"])
def test_a_damaged_one_is_left_out_in_a_line(tmp_path, capsys, damage, file) -> None:
    model = torch.nn.Linear(3, 2)
    saver = Saver(CheckpointConfig(every_steps=1, asynchronous=False), tmp_path, {"model": model}, dict, WholeState())
    saver.save(1)
    saver.save(2)
    path = checkpoint_folder.path_of(tmp_path, 2)
    target = path / ("checkpoint.json" if damage.startswith("about") else file)
    content = bytearray(target.read_bytes())
    if damage.endswith("gone"):
        target.unlink()
    else:
        content[len(content) // 2] ^= 1
        target.write_bytes(content[: len(content) // 2] if damage == "cut" else content)
    found = checkpoint_folder.newest(tmp_path)
    assert found.steps == 1
    assert torch.equal(found.states(WholeState())["model"]["weight"], model.weight)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert str(path) in lines[0]
    assert "the one before is used" in lines[0]
    assert path in checkpoint_folder.written(tmp_path)  # what a refused resumption finds, the next one finds, too
    checkpoint_folder.remove_newer(found)
    assert checkpoint_folder.written(tmp_path) == [checkpoint_folder.path_of(tmp_path, 1)]


def test_one_under_the_name_of_another_step_is_no_checkpoint(tmp_path, capsys) -> None:
    """It would stay the newest whatever is trained, and each resumption would begin at its step again."""
    settings = CheckpointConfig(every_steps=1, asynchronous=False)
    saver = Saver(settings, tmp_path, {"random": RandomStates()}, dict, WholeState())
    saver.save(1)
    saver.save(2)
    checkpoint_folder.path_of(tmp_path, 1).rename(checkpoint_folder.path_of(tmp_path, 99))
    found = checkpoint_folder.newest(tmp_path)
    assert found.steps == 2
    assert "it is the checkpoint of step 1 under another name" in capsys.readouterr().err


def test_where_all_are_damaged_nothing_begins_again_in_silence(tmp_path, capsys) -> None:
    assert checkpoint_folder.newest(tmp_path / "none") is None
    (tmp_path / "step-00000003").mkdir()
    with pytest.raises(InputError, match="none of 1 checkpoints can be used"):
        checkpoint_folder.newest(tmp_path)
    assert "is used" not in capsys.readouterr().err


def test_only_the_newest_are_kept_and_no_leftovers(tmp_path: Path) -> None:
    saver = Saver(CheckpointConfig(every_steps=1, keep=3), tmp_path, {"random": RandomStates()}, dict, WholeState())
    for steps in range(1, 7):
        saver.save(steps)
    saver.wait()
    assert [path.name for path in checkpoint_folder.written(tmp_path)] == [f"step-{n:08d}" for n in (6, 5, 4)]
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("asynchronous", [True, False])
def test_what_cannot_be_written_is_said(tmp_path: Path, asynchronous: bool) -> None:
    (tmp_path / "file").write_text("")
    settings = CheckpointConfig(every_steps=1, asynchronous=asynchronous)
    saver = Saver(settings, tmp_path / "file" / "below", {}, dict, WholeState())

    def save() -> None:
        saver.save(1)
        saver.wait()

    with pytest.raises(OSError, match="file"):
        save()


@pytest.mark.parametrize("part", ["model", "other"])
def test_a_disk_that_is_full_is_said_as_the_system_says_it(tmp_path: Path, part: str) -> None:
    """torch and safetensors raise errors of their own: "unexpected pos 77888 vs 77840"."""
    states = {part: {"weight": torch.zeros(50_000)}}
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python does by itself
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"File too large.*step-00000007"):
            checkpoint_folder.write(tmp_path, 7, states, {}, WholeState(), lambda: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_random_states_go_on_where_they_were(tmp_path: Path) -> None:
    def draws() -> tuple[object, ...]:
        return random.random(), float(np.random.normal()), float(np.random.normal()), float(torch.rand(1))

    np.random.normal()  # numpy keeps the second of two
    part = RandomStates()
    torch.save(part.state_dict(), tmp_path / "random.pt")
    then = draws()
    part.load_state_dict(torch.load(tmp_path / "random.pt", weights_only=True))
    assert draws() == then


def test_shared_memory_stays_shared_in_a_copy() -> None:
    weight = torch.ones(3)
    copy = in_host_memory({"a": weight, "b": [weight, torch.zeros(3)]}, copies=True)
    assert copy["a"] is copy["b"][0]
    assert copy["a"].data_ptr() != weight.data_ptr()
    assert in_host_memory({"a": weight}, copies=False)["a"].data_ptr() == weight.data_ptr()


def test_a_dataset_state_that_nobody_could_read_again_is_refused_at_the_first_checkpoint() -> None:
    """A checkpoint is loaded with weights_only: numpy's arrays and classes of one's own would be known too late."""
    for state, read in (({"rng": [1, 2.5, "a", torch.ones(2)]}, True), (np.arange(3), False), (Path("a"), False)):
        position = DataPosition(1, positions={0: Position(state=state)})
        part = parts_of({}, position)["data"]
        if read:
            assert part.state_dict() == position.state_dict()
        else:
            with pytest.raises(InputError, match=r"data\.source: the state_dict of its dataset"):
                part.state_dict()


def _merged(config: dict[str, Any], changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return config | {section: {**config[section], **values} for section, values in changes.items()}


def test_another_training_is_refused(make: Callable[..., TrainerConfig], tmp_path: Path) -> None:
    config = make()
    about = {"config": identity(config), "fingerprints": {"corpus": "1"}}
    checkpoint_folder.write(tmp_path, 1, {}, about, WholeState(), lambda: None)
    found = checkpoint_folder.newest(tmp_path)
    check_identity(found, make(keep=1, steps=99, data={"prefetch": 7, "transport": "ring"}), {"corpus": "1"})
    launched = make(launch={"torchrun": {"nproc": 1}}, compute={"device": "cpu", "sync": "norm"})
    later = {"data.documents", "optimizer.clip_norm", "launch.parallel", "compute.sync"}
    older = {key: one for key, one in identity(launched).items() if key not in later}
    checkpoint_folder.write(tmp_path / "older", 1, {}, {"config": older}, WholeState(), lambda: None)
    before = checkpoint_folder.newest(tmp_path / "older")
    assert before is not None
    check_identity(before, launched, {})  # of a version that had no such keys
    for changes, reason in (
        ({"data": {"path": "tokens-mmap", "documents": "separated"}}, r"data\.documents: 'separated', .* 'joined'"),
        ({"optimizer": {"clip_norm": None}}, r"optimizer\.clip_norm: None, but .* was made with 1\.0"),
        ({"compute": {"sync": "late"}}, r"compute\.sync: 'late', but .* was made with 'norm'"),
        ({"launch": {"parallel": "fsdp"}}, r"launch\.parallel: 'fsdp', but .* was made with 'ddp'"),
    ):
        with pytest.raises(InputError, match=reason):
            check_identity(before, TrainerConfig.model_validate(_merged(launched.model_dump(), changes)), {})
    with pytest.raises(InputError, match=r"launch\.parallel: 'ddp', but .* was made with None"):
        check_identity(found, make(launch={}), {"corpus": "1"})
    evaluated = make(evaluation={})
    with pytest.raises(InputError, match=r"evaluation: 'given', but .* was made with None"):
        check_identity(found, evaluated, {"corpus": "1"})
    about = {"config": identity(evaluated), "fingerprints": {}}
    checkpoint_folder.write(tmp_path, 2, {}, about, WholeState(), lambda: None)
    later = checkpoint_folder.read(checkpoint_folder.path_of(tmp_path, 2))
    check_identity(later, make(evaluation={"every_steps": 7, "batches": 3}), {})
    with pytest.raises(InputError, match=r"evaluation\.fraction: 0\.5"):
        check_identity(later, make(evaluation={"fraction": 0.5}), {})
    with pytest.raises(InputError, match=r"data\.batch_size: 4, but .*step-00000001 was made with 3"):
        check_identity(found, make(data={"batch_size": 4}), {"corpus": "1"})
    with pytest.raises(InputError, match="corpus: '2'"):
        check_identity(found, config, {"corpus": "2"})
    with pytest.raises(InputError, match="random: not a part of both"):
        load({"random": RandomStates()}, found.states(WholeState()), found)


def test_a_run_of_data_alone_saves_nothing(make: Callable[..., TrainerConfig], tmp_path: Path) -> None:
    """The stall of a save would count as the time of data work in isolation."""
    from harness.launch.opener import Checkpoints, make_saver

    for work in ("model", "none"):
        config = make(compute={"work": work, "device": "cpu", "threads": 1})
        prepared = prepare(config.data)
        with open_batches(config.data, prepared, 0) as batches:
            compute = build_compute(config, prepared.tokenizer.vocab_size)
            saver = make_saver(config, compute, batches, Checkpoints(tmp_path))
        assert (saver is None) == (work == "none")


def test_one_is_due_by_steps_or_by_time(tmp_path: Path) -> None:
    by_steps = Saver(CheckpointConfig(every_steps=4), tmp_path, {}, dict, WholeState())
    assert [steps for steps in range(1, 10) if by_steps.is_due(steps)] == [4, 8]
    by_time = Saver(CheckpointConfig(every_minutes=2), tmp_path, {}, dict, WholeState())
    assert not by_time.is_due(1)
    by_time._saved_s -= 121
    assert by_time.is_due(1)
    with pytest.raises(ValueError, match="at most one"):
        CheckpointConfig(every_steps=1, every_minutes=1)


@pytest.mark.slow
def test_a_half_written_one_of_a_killed_process_goes(tmp_path: Path) -> None:
    """A killed process leaves a folder of a temporary name: never taken for a checkpoint, and removed."""
    pid = os.fork()
    if pid == 0:

        class Killed(WholeState):
            def write(self, folder: Path, states: Any) -> Any:
                super().write(folder, states)
                os._exit(0)

        checkpoint_folder.write(tmp_path, 7, {"random": {}}, {}, Killed(), lambda: None)
    os.waitpid(pid, 0)
    assert len(list(tmp_path.iterdir())) == 1
    assert checkpoint_folder.newest(tmp_path) is None
    Saver(CheckpointConfig(every_steps=4), tmp_path, {}, dict, WholeState())
    assert list(tmp_path.iterdir()) == []
