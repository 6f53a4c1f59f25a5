"""Workers are chosen where the figures say that they pay, and as few as do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trainer import worker_trial
from trainer.config import DataConfig, TrainerConfig
from trainer.worker_trial import WorkerTrial, measure

Make = Callable[..., DataConfig]


@pytest.mark.parametrize(
    ("trial", "best"),
    [
        # (stage, ready, cycle, step) in ms, threads, cores
        (WorkerTrial(0.03, 1.0, 2.2, 10, 1, 8), 0),  # making it takes less than receiving it
        (WorkerTrial(0.03, 0.1, 0.4, 0.2, 1, 8), 0),
        (WorkerTrial(5, 0.1, 0.4, 10, 1, 2), 1),  # it is made while the device computes
        (WorkerTrial(5, 0.1, 0.4, 10, 2, 2), 1),  # and where all cores compute, whoever stands idle meanwhile
        (WorkerTrial(0.3, 0.1, 0.4, 10, 1, 2), 0),  # less than a trial can tell
        (WorkerTrial(40, 0.1, 0.4, 10, 1, 16), 4),
        (WorkerTrial(40, 0.1, 0.4, 10, 1, 2), 2),  # two cores do the work of two
        (WorkerTrial(40, 0.1, 0.4, 10, 1, 1), 0),  # one core does not
        (WorkerTrial(6, 7.0, 9.0, 1, 1, 8), 0),  # a transport that costs more than it hides
    ],
)
def test_the_fewest_workers_that_pay_are_chosen(trial: WorkerTrial, best: int) -> None:
    assert trial.best() == best
    assert all(trial.predicted_ms(best) <= trial.predicted_ms(workers) / 0.97 for workers in range(trial.cores + 1))


def test_a_step_waits_for_the_slowest() -> None:
    trial = WorkerTrial(stage_ms=12, ready_ms=1, cycle_ms=2, step_ms=10, threads=1, cores=4)
    assert trial.predicted_ms(0) == 22  # one after the other
    assert trial.predicted_ms(1) == 14  # the worker
    assert trial.predicted_ms(2) == 11  # the training process
    assert WorkerTrial(12, 1, 2, 10, 4, 4).predicted_ms(2) == 55 / 4  # the cores


def test_auto_stands_for_no_worker_until_they_are_chosen(make_config: Make) -> None:
    config = make_config(workers="auto")
    assert (config.workers, config.chooses_workers) == (0, True)
    assert config.model_copy(update={"replay": True}).chooses_workers
    assert not DataConfig.model_validate(config.model_dump()).chooses_workers
    assert TrainerConfig.model_validate({"data": {"workers": "auto"}}, strict=True).data.chooses_workers
    with pytest.raises(ValueError, match="workers"):
        make_config(workers="all")


def test_the_few_batches_that_pay_for_the_others_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long document is tokenized in one batch of the hundred that it fills."""
    now_s, made = [0.0], [0]

    def make() -> None:
        made[0] += 1
        now_s[0] += 0.1 if made[0] % 100 == 0 else 1e-5

    monkeypatch.setattr(worker_trial, "monotonic", lambda: now_s[0])
    assert worker_trial.mean_ms(make) == pytest.approx(1.01, rel=0.05)
    assert WorkerTrial(1.01, 0.1, 0.4, 2, 1, 2).best() == 1  # by the median, 0.01 ms, it was 0


@pytest.mark.slow
def test_a_trial_measures_its_parts(make_config: Make) -> None:
    inject = {"pack_ms": 8, "how": "sleep"}
    data = make_config(path="tokens-mmap", workers="auto", transport="ring", inject=inject)
    kernels = {"forward_ms": 20, "backward_ms": 0, "optimizer_ms": 0, "norm_ms": 0, "h2d_ms": 0}
    config = TrainerConfig.model_validate(
        {
            "data": data.model_dump(),
            "optimizer": {"accumulation": 2},
            "compute": {"device": {"emulated": "gh200", "kernels": kernels}, "precision": "bf16"},
        }
    )
    found = measure(config)
    assert found.stage_ms >= 8
    assert found.step_ms >= 20
    assert found.threads == 1
    assert found.ready_ms > 0
    assert found.cycle_ms > 0
    assert found.best() >= 1 or found.cores == 1 or max(found.cycle_ms, found.ready_ms) > 4
