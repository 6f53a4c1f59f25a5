"""Writes the records of a training: a study of one arm with a block for each part."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.launch.facts import peak_device_bytes
from harness.launch.study import environment_of
from harness.launch.tables import RunTables
from harness.probes.profilers.torch_session import realtime_minus_monotonic
from harness.study.records import ONE_TRAINING, ArmRecord, RunRecord, StudyRecord, new_study_id, now, session_of
from harness.study.store import StudyFolder
from trainer.config import ResumeConfig, TrainerConfig
from trainer.data.cache import file_fingerprint
from trainer.errors import InputError
from trainer.trained_model import brought_here

if TYPE_CHECKING:
    from harness.scenario.plan import Arm
    from trainer.compute.base import Compute


class TrainingRecords:
    """Records of one part of a training. Create this object when the part starts."""

    def __init__(
        self, arm: Arm, config: TrainerConfig, folder: StudyFolder, command: Sequence[str], source: str
    ) -> None:
        self.arm, self.config, self.folder = arm, config, folder
        self._command, self._source = list(command), source
        self._begun_utc = now()

    def study(self, scenario: str, resume: bool, price_usd_per_hour: float | None) -> StudyRecord:
        """Return the training's record: a study of one arm with a block for each part, of which ``resume`` adds one.

        Raises InputError if the study in the folder trains another arm.
        """
        environment = environment_of([self.config])
        name = self.arm.name
        arm = ArmRecord(name, declared=self.arm.declared, config=self.config.model_dump(mode="json"))
        if resume and self.folder.study_json.exists():
            before = self.folder.read_study()
            if [arm_record.name for arm_record in before.arms] != [name]:
                trained = ", ".join(arm_record.name for arm_record in before.arms)
                raise InputError(f"--out {self.folder.path}: the arm {trained} is trained there, not {name}")
            blocks = sum(self.folder.read_record(name, block) is not None for block in range(before.blocks))
            note = f"resumed {self._begun_utc}: {' '.join(self._command)}"
            study = replace(before, status="running", environment=environment, arms=[arm], notes=[*before.notes, note])
        else:
            blocks = 0
            study = StudyRecord(
                scenario=scenario,
                question=f"Where does the time of training {name} go?",
                status="running",
                created_utc=self._begun_utc,
                command=self._command,
                scenario_file=self._source,
                interleave="runs",
                interleave_reason=ONE_TRAINING,
                arms=[arm],
                environment=environment,
                id=new_study_id(),
                notes=["its blocks are parts of one training, so the intervals do not include run-to-run variation"],
            )
        if price_usd_per_hour is not None:
            study = replace(study, scenario_text={**study.scenario_text, "price_usd_per_hour": price_usd_per_hour})
        return replace(study, blocks=blocks + 1, order=[[name] for _ in range(blocks + 1)])

    def run(self, study: StudyRecord, block: int) -> RunRecord:
        """Return the run record of this part at its start, with the status "interrupted"."""
        return RunRecord(
            arm=self.arm.name,
            block=block,
            status="interrupted",
            session=session_of(study.id, f"train-{block}"),
            pid=os.getpid(),
            started_utc=self._begun_utc,
            config=self.config.model_dump(mode="json"),
            declared=self.arm.declared,
            environment=study.environment,
        )

    def steps_before(self, blocks: int) -> int:
        """Return the training's steps at the end of the last of ``blocks`` parts with a ledger; 0 without one."""
        from pyarrow.parquet import read_table

        for block in reversed(range(blocks)):
            path = self.folder.run(self.arm.name, block) / "steps.parquet"
            if self.folder.read_record(self.arm.name, block) is not None and path.exists():
                steps = read_table(path, columns=["step"]).column("step")
                return int(steps[-1].as_py()) + 1 if len(steps) else 0
        return 0

    def write(self, study: StudyRecord, record: RunRecord, tables: RunTables, compute: Compute | None) -> None:
        """Write the ledger of this part: its tables, then run.json, then the study's record."""
        record = replace(
            record,
            ended_utc=now(),
            realtime_minus_monotonic_ns=realtime_minus_monotonic()[0],
            peak_device_bytes=peak_device_bytes(compute),
        )
        tables.write()
        self.folder.write_samples(record.arm, record.block, {})
        self.folder.write_whole_run(record)
        self.folder.write_study(study)


def begun_elsewhere(study: StudyRecord, resume: ResumeConfig) -> StudyRecord:
    """Print which llm.c weights the training begins with. Return ``study`` with this line in its notes."""
    with brought_here(resume.llmc, "resume.llmc") as path:
        fingerprint = file_fingerprint(path)
    note = (
        f"begun at step {resume.step:,} with the weights of {resume.llmc} (fingerprint {fingerprint}); the optimizer's "
        "moments begin at zero, because llm.c's model file has none"
    )
    print(note, file=sys.stderr)
    return replace(study, notes=[*study.notes, note])
