"""Defines the trainer's whole configuration without importing torch, so that plans can be checked quickly.

Every key has a dotted path (``data.batch_size``). A wrong value is refused with that path. The larger sections have
files of their own (``config_model.py``, ``config_data.py``, ``config_compute.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from trainer.config_base import BEFORE, Config, How, Milliseconds
from trainer.config_compute import (
    ComputeConfig,
    ComputeInject,
    Device,
    EmulatedDevice,
    KernelCounts,
    KernelDurations,
    LaunchConfig,
    SlurmConfig,
    Torchrun,
)
from trainer.config_data import CorpusConfig, DataConfig, DataInject, TokenizerConfig, TrainTokenizer
from trainer.config_model import DEFAULT_PRESET, DIMENSIONS, PRESET_VOCABULARY, PRESETS, ModelConfig, Objective
from trainer.json_types import Json, JsonObject
from trainer.user_code import named_function

__all__ = [
    "BEFORE", "DEFAULT_PRESET", "DIMENSIONS", "PRESETS", "PRESET_VOCABULARY", "CheckpointConfig", "ComputeConfig",
    "ComputeInject", "Config", "CorpusConfig", "DataConfig", "DataInject", "Device", "EmulatedDevice",
    "EvaluationConfig", "How", "KernelCounts", "KernelDurations", "LaunchConfig", "Milliseconds", "ModelConfig",
    "MultipleChoiceConfig", "Objective", "OptimizerConfig", "ResumeConfig", "SampleConfig", "SlurmConfig",
    "TokenizerConfig", "Torchrun", "TrainTokenizer", "TrainerConfig", "recorded_config",
]  # fmt: skip


class MultipleChoiceConfig(Config):
    """Questions with four endings (HellaSwag). The model's answer is the ending with the largest likelihood."""

    path: str = Field(min_length=1)
    """A jsonl file with ctx (or ctx_a, ctx_b and activity_label), endings and label in each line; or llm.c's
    hellaswag_val.bin, if the model uses the tokenizer that made the file."""
    every_steps: int | None = Field(None, ge=1, le=1_000_000_000)
    """Steps between two passes over the questions; null: one pass, at the end of training, which always runs."""
    most: int | None = Field(None, ge=1)
    """Use only the first N questions; null: all."""
    prompt: Literal["auto", "ctx", "lm-eval"] = "auto"
    """Text before the endings, for a jsonl file. ctx: that field unchanged, as in llm.c. lm-eval: built from
    activity_label, ctx_a and ctx_b as in lm-evaluation-harness, which also cleans the endings. auto: ctx if the line
    has it, else lm-eval."""


class EvaluationConfig(Config):
    """Held-out documents and passes over them. Without this section every document is trained on."""

    every_steps: int | None = Field(None, ge=1, le=1_000_000_000)
    """Steps between two passes; null: one pass, at the end of training, which always runs."""
    every_epochs: float | None = Field(None, gt=0, le=1_000_000)
    """Instead of every_steps: epochs of the training documents between two passes (0.5: two passes per epoch)."""
    fraction: float | None = Field(None, gt=0, lt=1)
    """Share of the documents that are held out, chosen by the hash of their content. Default: 0.05."""
    documents: int | None = Field(None, ge=1)
    """Instead of fraction: approximate number of documents to hold out."""
    corpus: CorpusConfig | None = None
    """Instead of fraction: documents of a separate corpus (llm.c's -iv), in their order, with the keys of data.corpus.
    The tokenizer of data.corpus tokenizes it. Training then uses every document of data.corpus."""
    batches: int = Field(16, ge=1, le=100_000)
    """Maximum number of batches per pass, of data.batch_size each. They are built once and kept in host memory."""
    source: Annotated[str, AfterValidator(named_function)] | None = None
    """With data.source: your MODULE:FUNCTION, which returns the held-out data in a form that data.source accepts. Its
    first batches are used, each once per pass."""
    arguments: dict[str, Json] = Field({})
    """More arguments of that function, by name."""
    multiple_choice: MultipleChoiceConfig | None = None
    """Questions that the model answers between steps, in addition to the passes over held-out documents."""

    @model_validator(mode="after")
    def _one_size(self) -> EvaluationConfig:
        names = ("fraction", "documents", "corpus", "source")
        keys = [name for name in names if getattr(self, name) is not None]
        if len(keys) > 1:
            raise ValueError(f"gives {' and '.join(keys)}; allowed: one of {', '.join(names)}")
        if self.every_steps is not None and self.every_epochs is not None:
            raise ValueError("gives every_steps and every_epochs; allowed: one of them")
        return self


class SampleConfig(Config):
    """Text that the model writes during training, as with llm.c's -s. Only `harness train` writes it.

    It is printed and stored in samples.jsonl. Its time is not counted in any step.
    """

    every_steps: int = Field(ge=1, le=1_000_000_000)
    """Steps between two texts."""
    prompt: str = ""
    """Text that the model continues; '' begins a new document."""
    tokens: int = Field(64, ge=1, le=100_000)
    """Maximum number of tokens after the prompt."""
    temperature: float = Field(1.0, ge=0, le=1000)
    """Divisor of the logits; 0: always the most likely token."""
    top_k: int | None = Field(None, ge=1)
    """Number of most likely tokens to draw from; null: all tokens."""
    seed: int = Field(0, ge=0, lt=2**62)
    """Seed of the draws. Every text starts from the same seed."""


class OptimizerConfig(Config):
    """AdamW with linear warmup, then a schedule (default: constant); gradients clipped by global norm."""

    learning_rate: float = Field(1e-3, gt=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    weight_decay: float = Field(0.1, ge=0)
    lr_warmup_steps: int = Field(10, ge=0)
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    """Learning rate after the warmup. linear, cosine: decay until the last step. wsd (warmup-stable-decay): constant,
    then linear over the last decay_fraction of the steps."""
    final_fraction: float = Field(0, ge=0, le=1)
    """Learning rate at and after the end of a schedule, as a share of learning_rate; no effect on constant."""
    decay_fraction: float = Field(0.2, gt=0, le=1)
    """Share of the schedule's steps in which wsd decays."""
    schedule_steps: int | None = Field(None, ge=1, le=1_000_000_000)
    """Length of the schedule in optimizer steps, warmup included; null: warmup_steps + steps of the run. Warm-up steps
    of a study's repetitions that come later train at the final rate."""
    clip_norm: float | None = Field(1.0, gt=0)
    accumulation: int = Field(1, ge=1)
    """Micro-batches per optimizer step."""
    fused: bool | None = None
    """Use the fused AdamW; null: if the device supports it."""


class CheckpointConfig(Config):
    """Checkpoints, from which a killed training is resumed.

    Give at most one of every_steps, every_epochs, every_minutes.
    """

    every_steps: int | None = Field(None, ge=1, le=1_000_000_000)
    """Optimizer steps between two checkpoints."""
    every_epochs: float | None = Field(None, gt=0, le=1_000_000)
    """Epochs of the training documents between two checkpoints. With several ranks the epochs of rank 0 decide."""
    every_minutes: float | None = Field(None, gt=0, le=10_000)
    """Minutes between two checkpoints; 10 if no interval is given. With several ranks the clock of rank 0 decides."""
    keep: int = Field(2, ge=1, le=10_000)
    """Number of newest checkpoints to keep. With 1, none is left if that one is damaged."""
    asynchronous: bool = True
    """Copy the state within the step and write it during the next ones; false: the step waits until it is written."""

    @model_validator(mode="after")
    def _one_interval(self) -> CheckpointConfig:
        if sum(interval is not None for interval in (self.every_steps, self.every_epochs, self.every_minutes)) > 1:
            raise ValueError("give at most one of every_steps, every_epochs, every_minutes")
        return self

    @property
    def interval_minutes(self) -> float:
        """Minutes between checkpoints: every_minutes, or 10 without it. Unused with every_steps or every_epochs."""
        return 10.0 if self.every_minutes is None else self.every_minutes


class ResumeConfig(Config):
    """Resume a training that another trainer began. The optimizer's moments begin at zero.

    Only `harness train` supports this. Steps, tokens and the learning-rate schedule continue from `step`, and the
    documents of earlier steps are skipped.
    """

    llmc: str
    """A model file of llm.c (model_00002365.bin), local or at a URL (s3://...). It contains only weights, so
    the optimizer's moments begin at zero. The section model must describe the same GPT-2."""
    step: int = Field(ge=0, le=1_000_000_000)
    """Optimizer steps already done, as in the name of llm.c's file. The first step here gets this number."""


class TrainerConfig(Config):
    """Configuration of one training run."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    compute: ComputeConfig = ComputeConfig()
    checkpoint: CheckpointConfig | None = None
    """Save checkpoints. `harness train` always saves them; a study removes them afterwards."""
    evaluation: EvaluationConfig | None = None
    sample: SampleConfig | None = None
    """Let the model write text during training; null: no text."""
    resume: ResumeConfig | None = None
    """Begin at a step of another trainer's training, with its weights; null: at step 0."""
    steps: int = Field(40, ge=1, le=10_000_000)
    """Measured steps."""
    warmup_steps: int = Field(5, ge=0, le=1_000_000)
    """Steps before the measured ones. The tables mark them as warmup; no figure includes them."""
    log_every: int = Field(10, ge=1)
    """Steps between log lines."""
    seed: int = Field(0, ge=0, lt=2**62)
    """Seed of weights and document order; block b of a study uses seed + b."""
    launch: LaunchConfig | None = None
    """Train in several processes; null: in one."""

    @property
    def ranks(self) -> int:
        """Number of processes that train together."""
        return 1 if self.launch is None else self.launch.torchrun.ranks

    @property
    def ranks_of_a_node(self) -> int:
        """Number of processes that train together on one machine."""
        return 1 if self.launch is None else self.launch.torchrun.nproc

    @property
    def user_functions(self) -> tuple[tuple[str, str], ...]:
        """(key, MODULE:FUNCTION) of each function of the user's own code that the configuration names."""
        validation = self.evaluation.source if self.evaluation is not None else None
        functions = (
            ("data.source", self.data.source),
            ("model.factory", self.model.factory),
            ("evaluation.source", validation),
        )
        return tuple((key, name) for key, name in functions if name is not None)

    @model_validator(mode="after")
    def _ranks_compute(self) -> TrainerConfig:
        if self.ranks > 1 and self.compute.emulated is not None:
            raise ValueError(
                "launch: an emulated device exchanges nothing with another; allowed: compute.device auto, cpu, cuda "
                "(harness whatif --set ranks=N predicts several)"
            )
        sharded = self.launch is not None and self.launch.parallel == "fsdp" and self.ranks > 1
        if sharded and self.compute.precision == "fp16":
            raise ValueError(
                "compute.precision: fp16 scales the loss, and each rank would judge its own share of the gradients; "
                "allowed with launch.parallel fsdp: fp32, tf32, bf16, pure-bf16"
            )
        inject = self.data.inject
        if inject is not None and inject.rank is not None and inject.rank >= self.ranks:
            raise ValueError(f"data.inject.rank: {inject.rank} of {self.ranks} ranks; allowed: 0 to {self.ranks - 1}")
        return self

    @model_validator(mode="after")
    def _samples_are_text(self) -> TrainerConfig:
        if self.sample is None:
            return self
        for key, value in (
            ("compute.emulated", self.compute.emulated),
            ("model.factory", self.model.factory),
            ("data.source", self.data.source),
        ):
            if value is not None:
                raise ValueError(
                    f"sample: text needs a computed causal model of transformers and a tokenizer, but {key} gives "
                    "none; allowed: no sample"
                )
        return self

    @model_validator(mode="after")
    def _a_model_of_ones_own_is_computed(self) -> TrainerConfig:
        if self.model.factory is not None and self.compute.emulated is not None:
            raise ValueError(
                "model.factory: an emulated device takes its times from the shape of a preset; allowed: "
                "compute.device auto, cpu, cuda"
            )
        if self.model.factory is not None and self.model.attention != "auto":
            raise ValueError("model.attention: a model.factory chooses its attention itself; allowed: auto")
        return self

    @property
    def first_step(self) -> int:
        """Number of the first step that is trained here."""
        return 0 if self.resume is None else self.resume.step

    @model_validator(mode="after")
    def _weights_of_one_place(self) -> TrainerConfig:
        if self.resume is None:
            return self
        for key in ("pretrained", "factory"):
            if (name := getattr(self.model, key)) is not None:
                raise ValueError(
                    f"resume.llmc: {self.resume.llmc} gives the weights, but model.{key}: {name} gives different "
                    "ones; allowed: a model.preset or model.config of the same GPT-2"
                )
        return self

    @model_validator(mode="after")
    def _schedule_outlasts_its_warmup(self) -> TrainerConfig:
        optimizer = self.optimizer
        total = optimizer.schedule_steps or self.warmup_steps + self.steps
        if optimizer.schedule != "constant" and optimizer.lr_warmup_steps >= total:
            raise ValueError(
                f"optimizer.lr_warmup_steps: {optimizer.lr_warmup_steps} of a {optimizer.schedule} schedule of {total} "
                "steps; allowed: fewer, or a larger optimizer.schedule_steps"
            )
        return self

    @model_validator(mode="after")
    def _evaluation_has_a_model_and_documents(self) -> TrainerConfig:
        if (evaluation := self.evaluation) is None:
            return self
        if self.compute.emulated is not None:
            raise ValueError(
                "evaluation: an emulated device computes nothing, so it has no loss; allowed: compute.device auto, "
                "cpu, cuda, or no evaluation"
            )
        if self.data.source is not None and evaluation.source is None:
            raise ValueError(
                "evaluation: the held-out documents of data.source are unknown; allowed: evaluation.source "
                "MODULE:FUNCTION, which returns them, or no evaluation"
            )
        if self.data.source is None and evaluation.source is not None:
            raise ValueError("evaluation.source: needs data.source; allowed here: fraction, documents or corpus")
        return self


def recorded_config(content: JsonObject) -> TrainerConfig:
    """Return a recorded configuration; missing keys of :data:`BEFORE` get its values. Raises ValidationError."""
    completed = dict(content)
    for dotted, value in BEFORE.items():
        section, key = dotted.split(".")
        if isinstance(inner := completed.get(section, {}), Mapping) and key not in inner:
            completed[section] = {**inner, key: value}
    return TrainerConfig.model_validate(completed)
