"""Runs that cannot fit into memory are refused before they start, with the arithmetic; what fits is never refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.launch import needs
from harness.launch.needs import GIB, MIB, MOST_OF_MEMORY, ByteRange, RunNeed, check_memory, choose_interleave, need_of
from harness.launch.preparation import StudyData
from harness.machine.capacity import Memory
from harness.machine.cgroup import MemoryLimit
from tests.commands import harness
from tests.harness.launch.running import set_free_memory
from trainer.config import TrainerConfig
from trainer.errors import InputError

CPU = {"device": "cpu"}
# What runs held (peak_memory_bytes of run.json, on a CPU: the sum of its processes' peaks, and so of the libraries that
# they share). The low end was 0.12 to 0.63 of it, the high end with what is shared 1.0 to 1.6.
SHARED_BYTES = 300 * MIB
LLAMA = {"preset": "llama-tiny", "layers": 8, "width": 512, "heads": 8}
MEASURED: list[tuple[dict[str, Any], int]] = [
    ({"data": {"sequence_length": 128, "batch_size": 4}}, 535_977_984),
    ({"model": {"vocab_size": 50304}, "data": {"sequence_length": 256, "batch_size": 16}}, 3_523_850_240),
    ({"model": LLAMA, "data": {"sequence_length": 512, "batch_size": 8}}, 3_763_613_696),
    ({"model": {"preset": "gpt2-small"}, "data": {"sequence_length": 64, "batch_size": 1},
      "compute": CPU | {"precision": "pure-bf16"}}, 1_658_417_152),
    ({"data": {"sequence_length": 1024, "batch_size": 512, "workers": 2}, "compute": CPU | {"work": "none"}},
     1_047_216_128),
]  # fmt: skip


def run_needs(count: int, high_gib: float = 2.0) -> list[RunNeed]:
    nothing = ByteRange(0, int(high_gib * GIB) - needs.PROCESS.high_bytes)
    return [RunNeed(f"arm{number}", "host", None, 0, nothing, 1) for number in range(count)]


def config(**changes: Any) -> TrainerConfig:
    return TrainerConfig.model_validate({"compute": CPU} | changes)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Any:
    return partial(set_free_memory, monkeypatch)


def test_arms_alternate_only_where_all_fit_into_memory(free: Any) -> None:
    for room, expected in ((10, "slices"), (8, "runs")):
        free(room)
        assert (MOST_OF_MEMORY * room >= 6) == (expected == "slices")
        reason = f"3 arms need about 6.0 GiB together, {room}.0 GiB memory is free"
        assert choose_interleave("auto", run_needs(3)) == (expected, reason)
    free(None)
    assert choose_interleave("auto", run_needs(1)) == ("runs", "free memory is unknown here")
    assert choose_interleave("auto", run_needs(65))[0] == "runs"
    assert choose_interleave("slices", run_needs(65)) == ("slices", "set by the scenario")
    check_memory(run_needs(2, 1e6), (), "slices")  # nothing is known, so nothing is refused


# The case: 53 GiB wanted, 22 free. It was started, and the kernel killed it.
LARGE = config(model={"preset": "llama-1b", "layers": 48})


def test_a_run_that_cannot_fit_is_refused_with_the_arithmetic(free: Any) -> None:
    free(22)
    need = need_of("big", LARGE, 4096)
    with pytest.raises(InputError) as refused:
        check_memory([need], (), "runs")
    text = str(refused.value)
    count = need.training.parameters if need.training else 0
    assert "\n" not in text
    assert text.startswith(f"arm big: needs at least {(16 * count + 50 * MIB) / GIB:.1f} GiB of memory, ")
    assert f"22.0 GiB is free: {count:,} parameters x 4 bytes = {4 * count / GIB:.1f}" in text
    assert f"two moments of AdamW {8 * count / GIB:.1f}, gradients {4 * count / GIB:.1f}" in text
    assert text.endswith(", or start anyway with --force")
    with pytest.raises(InputError) as refused:
        check_memory([need], (), "runs", None)
    assert "--force" not in str(refused.value)


def test_ranks_that_share_the_weights_take_them_once_and_others_each(free: Any) -> None:
    def need(parallel: str) -> RunNeed:
        launch = {"torchrun": {"nproc": 2}, "parallel": parallel}
        return need_of(parallel, config(model={"preset": "llama-1b"}, launch=launch), 4096)

    one = need_of("one", config(model={"preset": "llama-1b"}), 4096)
    assert one.training is not None
    weights = one.training.weight_bytes
    own = one.in_memory.lasting_bytes - 3 * weights
    assert need("ddp").in_memory.lasting_bytes == 2 * (3 * weights + own)
    assert need("fsdp").in_memory.lasting_bytes == pytest.approx(3 * weights + 2 * own, abs=8)
    free((need("fsdp").in_memory.peak.low_bytes + MIB) / GIB)
    check_memory([need("fsdp")], (), "runs", force=False)
    with pytest.raises(InputError, match=r": 2 ranks, each 1,498,482,688 parameters x 4 bytes = 5.6, two moments"):
        check_memory([need("ddp")], (), "runs")
    free(1)
    with pytest.raises(InputError, match=r"each 1,498,482,688 parameters x 4 bytes / 2 ranks = 2.8, two moments"):
        check_memory([need("fsdp")], (), "runs")


def test_the_copy_of_a_checkpoint_is_counted() -> None:
    """A gpt2-small with every_steps 3 was said to need 1.9 to 2.6 GiB, and held 4.0 as its checkpoint was written."""

    def need(compute: dict[str, Any] = CPU, parallel: str = "ddp", nproc: int = 1, **checkpoint: Any) -> RunNeed:
        launch = {"torchrun": {"nproc": nproc}, "parallel": parallel}
        saved = {"every_steps": 3, **checkpoint} if checkpoint.get("asynchronous") is not None else None
        changes = {"model": {"preset": "gpt2-small"}, "checkpoint": saved, "launch": launch, "compute": compute}
        return need_of("arm", config(data={"sequence_length": 32, "batch_size": 1}, steps=5, **changes), 2048)

    def more(**keys: Any) -> int:
        without = need(**{name: value for name, value in keys.items() if name in ("compute", "parallel", "nproc")})
        return need(**keys).in_memory.peak.high_bytes - without.in_memory.peak.high_bytes

    alone = need()
    assert alone.training is not None
    state = alone.training.lasting_bytes
    copied = need(asynchronous=True)
    assert copied.in_memory.peak.low_bytes == alone.in_memory.lasting_bytes + state
    assert copied.in_memory.peak.low_bytes < 4.01 * GIB < copied.in_memory.peak.high_bytes + SHARED_BYTES
    assert "a checkpoint's copy of weights and moments 1.4" in copied.arithmetic()
    assert more(asynchronous=True) == more(asynchronous=True, nproc=2) == state  # one rank has it of all
    assert more(asynchronous=True, nproc=2, parallel="fsdp") == pytest.approx(state, abs=16)
    assert more(asynchronous=False) == 0
    cuda = {"device": "cuda"}
    assert more(asynchronous=False, compute=cuda) == more(asynchronous=True, compute=cuda) == state
    assert more(asynchronous=False, compute=cuda, nproc=2, parallel="fsdp") == 0
    late = need(asynchronous=True, every_steps=300)  # after the last step of a study
    assert late.in_memory.peak.low_bytes == alone.in_memory.peak.low_bytes
    seldom = config(checkpoint={"every_steps": 300, "asynchronous": True}, steps=5, compute=CPU)
    (kept, saved) = (need_of("arm", seldom, 50257, saved_at_end=end) for end in (False, True))
    assert kept.checkpoint.low_bytes == 0 < saved.checkpoint.low_bytes == saved.checkpoint.high_bytes


def test_between_low_and_high_or_forced_is_a_warning_and_what_fits_is_none(
    free: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    free(22)
    check_memory([need_of("big", LARGE, 4096)], (), "runs", force=True)
    assert capsys.readouterr().err.startswith("warning: arm big may not fit: needs ")
    need = need_of("text", config(model={"preset": "gpt2-small"}), 4096)
    for size, warnings in ((need.in_memory.peak.low_bytes, 1), (need.in_memory.peak.high_bytes, 0)):
        free(size / GIB + 0.001)
        check_memory([need], (), "runs")
        assert capsys.readouterr().err.count("warning: arm text may not fit") == warnings


def test_arms_that_alternate_are_in_memory_together_but_one_at_a_time_is_in_a_step(free: Any) -> None:
    one = need_of("one", config(model={"preset": "gpt2-small"}), 4096)
    both = [one, replace(one, arm="two")]
    step = one.in_memory.peak.low_bytes - one.in_memory.lasting_bytes
    assert step > 0
    enough = 2 * one.in_memory.lasting_bytes + step
    free((enough + MIB) / GIB)
    check_memory(both, (), "slices")
    free((enough - MIB) / GIB)
    with pytest.raises(InputError, match=r"^2 arms that alternate: .*: the largest, arm one: .*give --interleave runs"):
        check_memory(both, (), "slices")
    check_memory(both, (), "runs")
    check_memory(both, {"two"}, "slices")  # a profiled run is alone


def test_a_batch_of_each_worker_counts_a_replayed_one_is_never_ahead_and_an_emulated_device_holds_no_model(
    free: Any,
) -> None:
    def need(**more: Any) -> RunNeed:
        data = {"batch_size": 8192, "sequence_length": 65536, "workers": 2, "prefetch": 4, **more}
        return need_of("wide", config(data=data, compute=CPU | {"work": "none"}), 512)

    free(12)
    with pytest.raises(InputError, match=r"2 workers 0.1, 2 batches of 8192.0 MiB 16.0 GiB"):
        check_memory([need()], (), "runs")
    free(22)
    check_memory([need(replay=True)], (), "runs")
    emulated = config(model={"preset": "llama-8b"}, compute={"device": {"emulated": "gh200"}})
    check_memory([need_of("paper", emulated, 4096)], (), "runs")


def test_a_card_is_checked_and_the_host_that_builds_the_model(free: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    need = need_of("card", config(model={"preset": "llama-8b"}, compute={"device": "cuda"}), 4096)
    free(1000, 12, 80)
    with pytest.raises(InputError, match=r"GiB of GPU memory, 80.0 GiB is free"):
        check_memory([need], (), "runs")
    free(20, 1000)
    with pytest.raises(InputError, match=r"GiB of memory, 20.0 GiB is free"):
        check_memory([need], (), "runs")
    free(1000, 12, 1000)
    check_memory([need], (), "runs")
    monkeypatch.setattr(needs, "has_nvidia_driver", lambda: True)
    unknown = need_of("auto", config(model={"preset": "llama-8b"}, compute={"device": "auto"}), 4096)
    free(40, 80)
    check_memory([unknown], (), "runs")  # torch may have no CUDA, or the host too little: nobody knows which


def test_the_tightest_of_machine_and_control_group_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "read_memory", lambda: Memory(64 * GIB, 22 * GIB, 0, 0, None))
    monkeypatch.setattr(needs, "find_group", lambda _controller: None)
    monkeypatch.setattr(needs, "memory_limit", lambda _group: None)
    assert needs.free_host_bytes() == 22 * GIB
    limit = MemoryLimit(8 * GIB, 7 * GIB, GIB, None, Path("/"), 2, active_file_bytes=2 * GIB)
    monkeypatch.setattr(needs, "memory_limit", lambda _group: limit)
    assert needs.free_host_bytes() == 4 * GIB  # file pages are dropped before anything is killed


def test_measured_peaks_lie_within_the_estimate() -> None:
    for changes, peak_bytes in MEASURED:
        takes = need_of("arm", config(**changes), 2048).in_memory.peak
        assert takes.low_bytes < peak_bytes, changes
        assert takes.high_bytes + SHARED_BYTES > peak_bytes, changes


def test_harness_run_refuses_before_a_study_is_made(tmp_path: Path, free: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = StudyData([need_of("big", LARGE, 4096)], {}, {})
    monkeypatch.setattr("harness.launch.study.prepare_data", lambda *_: found)
    free(22)
    (tmp_path / "big.yaml").write_text(
        "name: big\nquestion: Does it fit?\nbase: {compute.device: cpu}\narms: {big: {}}\n"
    )
    done = harness("run", str(tmp_path / "big.yaml"), "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr.startswith("harness: arm big: needs at least ")
    assert not (tmp_path / "out").exists()
