"""Defines the trainer's whole configuration without importing torch, so that plans can be checked quickly.

Every key has a dotted path (``data.batch_size``). A wrong value is refused with that path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from trainer.json_types import Json, JsonObject
from trainer.user_code import named_function


class Config(BaseModel):
    """Base of all sections: unknown keys are errors, values never change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


Milliseconds = Annotated[float, Field(ge=0, le=60_000)]
How = Literal["busy", "sleep"]

PRESETS: dict[str, dict[str, object]] = {
    # family, layers, width, heads, kv_heads, feed-forward width, vocabulary. gpt2-small to gpt2-xl: Radford et al.
    # 2019, table 2, with the vocabulary of their code; distilbert: Sanh et al. 2019, as distilbert-base-uncased has it;
    # llama-1b / llama-8b: the published Llama 3.2 1B and Llama 3.1 8B shapes (8B with the founding study's vocabulary).
    "gpt2-tiny": {"family": "gpt2", "layers": 4, "width": 128, "heads": 4, "kv_heads": 4, "ffn_width": 512},
    "gpt2-small": {"family": "gpt2", "layers": 12, "width": 768, "heads": 12, "kv_heads": 12, "ffn_width": 3072},
    "gpt2-medium": {"family": "gpt2", "layers": 24, "width": 1024, "heads": 16, "kv_heads": 16, "ffn_width": 4096},
    "gpt2-large": {"family": "gpt2", "layers": 36, "width": 1280, "heads": 20, "kv_heads": 20, "ffn_width": 5120},
    "gpt2-xl": {"family": "gpt2", "layers": 48, "width": 1600, "heads": 25, "kv_heads": 25, "ffn_width": 6400},
    "distilbert": {"family": "distilbert", "layers": 6, "width": 768, "heads": 12, "kv_heads": 12, "ffn_width": 3072},
    "llama-tiny": {"family": "llama", "layers": 4, "width": 128, "heads": 4, "kv_heads": 2, "ffn_width": 344},
    "llama-1b": {"family": "llama", "layers": 16, "width": 2048, "heads": 32, "kv_heads": 8, "ffn_width": 8192},
    "llama-8b": {"family": "llama", "layers": 32, "width": 4096, "heads": 32, "kv_heads": 8, "ffn_width": 14336},
}
PRESET_VOCABULARY = {
    **dict.fromkeys(("gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl"), 50257),
    "distilbert": 30522,
    "llama-1b": 128256,
    "llama-8b": 131072,
}
DEFAULT_PRESET: Literal["gpt2-tiny"] = "gpt2-tiny"
DIMENSIONS = ("family", "layers", "width", "heads", "kv_heads", "ffn_width")
Objective = Literal["causal", "masked"]


def _model_config_tag(value: Any) -> str:
    return "[inline]" if isinstance(value, dict) else "[path]"


class ModelConfig(Config):
    """Exactly one of: preset (and any dimension of it overridden), config, pretrained, factory."""

    preset: (
        Literal[
            "gpt2-tiny",
            "gpt2-small",
            "gpt2-medium",
            "gpt2-large",
            "gpt2-xl",
            "distilbert",
            "llama-tiny",
            "llama-1b",
            "llama-8b",
        ]
        | None
    ) = DEFAULT_PRESET
    """Of the dimensions below those that are given replace the preset's. Default: gpt2-tiny where no other model is."""
    family: Literal["gpt2", "llama", "distilbert"] | None = None
    layers: int | None = Field(None, ge=1)
    width: int | None = Field(None, ge=1)
    heads: int | None = Field(None, ge=1)
    kv_heads: int | None = Field(None, ge=1)
    ffn_width: int | None = Field(None, ge=1)
    vocab_size: int | None = Field(None, ge=2)
    """Size of the embedding table; default: the preset's or config's, or the tokenizer's where the preset has none."""
    config: (
        Annotated[
            Annotated[str, Tag("[path]")] | Annotated[dict[str, Json], Tag("[inline]")],
            Discriminator(_model_config_tag),
        ]
        | None
    ) = None
    """A folder with a config.json, such a file, or what would stand in it ({model_type: qwen2, hidden_size: 64, ...}):
    any causal or masked language model of the transformers library, with random weights. Its dropout is as it says.
    Nothing is downloaded, and code that a folder carries is never run."""
    pretrained: str | None = None
    """A folder with a config.json and weights (*.safetensors), which training goes on from."""
    factory: Annotated[str, AfterValidator(named_function)] | None = None
    """MODULE:FUNCTION of your own, which gives a torch module instead of a preset's. It is called with those of
    vocab_size, sequence_length and seed that it has a parameter for. The module is called with input_ids and labels
    (which it shifts by itself, as transformers' models do) and returns the loss, or something that holds it. Only where
    a source of your own pads before the text it is given attention_mask too."""
    arguments: dict[str, Json] = {}
    """More arguments of the factory, by name."""
    objective: Objective | None = None
    """causal: each token is predicted from those before it. masked: 15 % of the tokens are predicted from all others:
    80 % of these are replaced by a mask token, 10 % by a random one and 10 % by themselves (Devlin et al. 2019).
    Default: what the model was made for; causal for a factory's."""
    attention: Literal["auto", "sdpa", "flash", "eager"] = "auto"
    """sdpa: torch's scaled_dot_product_attention, which picks a kernel; flash: the same, with its flash kernel or not
    at all; eager: plain matrix products. auto: sdpa where the model has it, else eager."""
    compile: bool = False
    """Compile the model with torch.compile, in the first steps: give them as warmup_steps."""
    activation_checkpointing: bool = False
    """Keep each layer's input alone for the backward pass, and compute the layer again there: a third more compute for
    a fraction of the memory (Chen et al. 2016)."""

    @model_validator(mode="before")
    @classmethod
    def _without_the_default_preset(cls, given: Any) -> Any:
        """Where another model is named, no preset is. (A factory's configuration always recorded the default one.)"""
        if not isinstance(given, dict) or "preset" in given:
            return given
        of_files = any(given.get(key) is not None for key in ("config", "pretrained"))
        return {**given, "preset": None} if of_files else given

    @model_validator(mode="after")
    def _exactly_one(self) -> ModelConfig:
        preset = None if self.factory is not None and self.preset == DEFAULT_PRESET else self.preset
        ways = {"preset": preset, "config": self.config, "pretrained": self.pretrained, "factory": self.factory}
        given = [key for key, value in ways.items() if value is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"{found} given; give exactly one of preset, config, pretrained, factory (others: null)")
        if self.is_of_files:
            if keys := [key for key in DIMENSIONS if getattr(self, key) is not None]:
                raise ValueError(f"{given[0]} says what the model is made of; {', '.join(keys)} are of a preset alone")
            if self.pretrained is not None and self.vocab_size is not None:
                raise ValueError("pretrained weights have the vocabulary of their config.json; leave vocab_size out")
        return self

    @property
    def is_of_files(self) -> bool:
        """Whether ``config`` or ``pretrained`` gives the model."""
        return self.config is not None or self.pretrained is not None


class TrainTokenizer(Config):
    """A tokenizer that is trained once on the corpus, and cached by the content of corpus and settings."""

    kind: Literal["bpe", "unigram", "wordpiece", "sentencepiece"] = "bpe"
    """sentencepiece: a unigram model of that library, which encodes with it, too; the others are of `tokenizers`."""
    vocab_size: int = Field(4096, ge=300, le=1_000_000)


class TokenizerConfig(Config):
    """Exactly one of: train, pretrained (a directory or name for AutoTokenizer), sentencepiece (a model file)."""

    train: TrainTokenizer | None = None
    pretrained: str | None = None
    sentencepiece: str | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> TokenizerConfig:
        if sum(value is not None for value in (self.train, self.pretrained, self.sentencepiece)) != 1:
            raise ValueError("give exactly one of train, pretrained, sentencepiece")
        return self


class CorpusConfig(Config):
    """Exactly one of: builtin, or parquet (a file or glob) with its text column."""

    builtin: Literal["python-docs"] | None = None
    parquet: str | None = None
    column: str = "text"
    documents: int | None = Field(None, ge=1)
    """Use only the first N documents."""

    @model_validator(mode="after")
    def _exactly_one(self) -> CorpusConfig:
        if (self.builtin is None) == (self.parquet is None):
            raise ValueError("give exactly one of builtin, parquet")
        return self


class DataInject(Config):
    """Known costs added to the stages of every batch (milliseconds per batch), to test the harness itself."""

    read_ms: Milliseconds = 0
    tokenize_ms: Milliseconds = 0
    pack_ms: Milliseconds = 0
    transfer_ms: Milliseconds = 0
    how: How = "busy"
    """busy spends that much CPU time of the thread; sleep waits without using a core."""
    jitter: float = Field(0, ge=0, lt=1)
    """Each cost is multiplied by a seeded uniform draw from [1 - jitter, 1 + jitter]."""
    rank: int | None = Field(None, ge=0, le=1023)
    """Only this rank spends them (an injected straggler); None: every rank does."""


class DataConfig(Config):
    """The input side: a data pipeline (source, tokenization, packing) and the loader around it."""

    path: Literal["text-padded", "text-stream", "tokens-padded", "tokens-stream"] = "text-padded"
    """text-*: tokenize on the fly. tokens-*: pretokenized files. *-padded: one document a row. *-stream: packed."""
    access: Literal["scalar", "zero-copy"] = "scalar"
    """scalar: per-row Arrow scalars and Python lists, as the founding study did; zero-copy: Arrow buffers as arrays."""
    corpus: CorpusConfig = CorpusConfig(builtin="python-docs")
    tokenizer: TokenizerConfig = TokenizerConfig(train=TrainTokenizer())
    sequence_length: int = Field(256, ge=2, le=1_048_576)
    """At least 2: a sequence of one token has nothing to predict."""
    batch_size: int = Field(8, ge=1, le=65_536)
    """Rows of a micro-batch, of each rank where there are several."""
    shuffle: bool = True
    workers: int = Field(0, ge=0, le=256)
    prefetch: int = Field(2, ge=1, le=1024)
    """Batches in flight per worker (DataLoader's prefetch_factor); no effect with workers 0."""
    pin_memory: bool = False
    tokenize: Literal["batched", "per-sample", "processes", "pool"] = "batched"
    """How a text-* path tokenizes. batched: one call for all documents that are read at once; per-sample: a call each.
    processes: their share in each of ``tokenize_processes`` processes started for it; pool: in as many that stay."""
    tokenize_processes: int = Field(2, ge=1, le=256)
    """Processes of ``tokenize: processes`` and ``pool``."""
    timeout_s: float = Field(300, gt=0, le=86_400)
    """Waiting for one batch of the workers ends the run after this many seconds; time that a run stands suspended does
    not count. Without workers, `limits.silence_s` of the scenario alone holds."""
    start_method: Literal["fork", "forkserver", "spawn"] = "fork"
    """How loader workers start. The workers start before this process tokenizes anything, so fork is safe."""
    replay: bool = False
    """Repeat the path's first batch forever: no data cost (the ideal-data control sets it). Of a source of your own
    whose batches differ in length: its first 32 (fewer of 256 MB, or where they take 10 s) by turns."""
    extra_reads: int = Field(0, ge=0, le=64)
    """Read every batch's rows this many more times and drop the result (a dose control sets it). A source of your own
    makes the whole batch so many more times."""
    extra_tokenizations: int = Field(0, ge=0, le=64)
    """Tokenize every batch this many more times and drop the result (a dose control sets it)."""
    inject: DataInject | None = None
    source: Annotated[str, AfterValidator(named_function)] | None = None
    """MODULE:FUNCTION of your own, which gives a Dataset, an IterableDataset, a DataLoader or a pair (dataset, collate
    function), of which a DataLoader's workers, prefetch and pinning are not taken. It is called with those of seed,
    batch_size and sequence_length that it has a parameter for; path, access, corpus and tokenizer are not used. A batch
    has input_ids, and may have labels and attention_mask, which the model is given where padding precedes text."""
    arguments: dict[str, Json] = {}
    """More arguments of the source's function, by name."""

    @model_validator(mode="after")
    def _workers_start_no_processes(self) -> DataConfig:
        if self.workers and self.tokenize in ("processes", "pool"):
            raise ValueError(
                f"tokenize: {self.tokenize} starts processes, which loader workers cannot; allowed with workers "
                f"{self.workers}: batched, per-sample; or workers 0"
            )
        return self


class EvaluationConfig(Config):
    """Held-out documents and passes over them. Without this section every document is trained on."""

    every_steps: int | None = Field(None, ge=1, le=1_000_000_000)
    """Steps between two passes; null: one pass alone, when training ends. There is one then in any case."""
    fraction: float | None = Field(None, gt=0, lt=1)
    """Share of the documents that no step trains on: those whose content's hash is below it. Default: 0.05."""
    documents: int | None = Field(None, ge=1)
    """Instead of fraction: about so many of the corpus' documents."""
    batches: int = Field(16, ge=1, le=100_000)
    """Batches of one pass at most, of data.batch_size each. They are made once and stay in the host's memory."""
    source: Annotated[str, AfterValidator(named_function)] | None = None
    """With data.source: MODULE:FUNCTION of your own, which gives the held-out data in one of the forms that data.source
    has. Its first batches are taken, none twice."""
    arguments: dict[str, Json] = {}
    """More arguments of that function, by name."""

    @model_validator(mode="after")
    def _one_size(self) -> EvaluationConfig:
        given = [name for name in ("fraction", "documents", "source") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"gives {' and '.join(given)}; allowed: one of fraction, documents, source")
        return self


class OptimizerConfig(Config):
    """AdamW with linear warmup, then a schedule (default: constant); gradients clipped by global norm."""

    learning_rate: float = Field(1e-3, gt=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    weight_decay: float = Field(0.1, ge=0)
    lr_warmup_steps: int = Field(10, ge=0)
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    """Of the learning rate after the warmup: constant; linear or cosine from its end to the last step; wsd
    (warmup-stable-decay): constant, then linear over the last decay_fraction of the steps."""
    final_fraction: float = Field(0, ge=0, le=1)
    """Share of the learning rate that a schedule ends with and stays at; no effect on constant."""
    decay_fraction: float = Field(0.2, gt=0, le=1)
    """Share of the schedule's steps that wsd decays over."""
    schedule_steps: int | None = Field(None, ge=1, le=1_000_000_000)
    """Optimizer steps that the schedule is over, warmup included; null: warmup_steps + steps of the run. Repetitions of
    a study have warm-up steps of their own, which train at the final rate where they come after that."""
    clip_norm: float | None = Field(1.0, gt=0)
    accumulation: int = Field(1, ge=1)
    """Micro-batches per optimizer step."""
    fused: bool | None = None
    """None: fused where the device supports it."""


class ComputeInject(Config):
    """Known costs added to the phases of every step (milliseconds), on the host's main thread."""

    forward_ms: Milliseconds = 0
    backward_ms: Milliseconds = 0
    optimizer_ms: Milliseconds = 0
    sync_ms: Milliseconds = 0
    other_ms: Milliseconds = 0
    how: How = "busy"


class KernelDurations(Config):
    """Fixed durations of an emulated device's kernels in milliseconds; None: by roofline from the device profile."""

    h2d_ms: Milliseconds | None = None
    """Per micro-batch, as are forward and backward."""
    forward_ms: Milliseconds | None = None
    backward_ms: Milliseconds | None = None
    norm_ms: Milliseconds | None = None
    """Gradient norm and clipping, per step."""
    optimizer_ms: Milliseconds | None = None


class KernelCounts(Config):
    """How many kernels the host launches on an emulated device, one after the other; each phase has at least one."""

    h2d: int = Field(1, ge=1, le=100_000)
    """Per micro-batch, as are forward and backward."""
    forward: int = Field(1, ge=1, le=100_000)
    backward: int = Field(1, ge=1, le=100_000)
    norm: int = Field(1, ge=1, le=100_000)
    """Gradient norm and clipping, per step."""
    optimizer: int = Field(1, ge=1, le=100_000)


class EmulatedDevice(Config):
    """An emulated in-order asynchronous device: its kernels take time and compute nothing."""

    emulated: str
    """A device profile (profiles/devices/*.yaml): gh200, h100-sxm, ..."""
    matmul_efficiency: float | None = Field(None, gt=0, le=1)
    """Share of the dense peak that forward and backward reach; None: the achievable matmul rate of the profile."""
    memory_efficiency: float = Field(0.9, gt=0, le=1)
    """Share of the memory and link bandwidth that optimizer, gradient norm and copies reach: a stated assumption."""
    speed: float = Field(1.0, gt=0, le=1000)
    """Every kernel takes its time divided by this."""
    jitter: float = Field(0, ge=0, lt=1)
    """Each kernel's time is multiplied by a seeded uniform draw from [1 - jitter, 1 + jitter]."""
    queue_depth: int = Field(1024, ge=1, le=1_000_000)
    """Phases (of a micro-batch) that may wait in the queue; the host blocks while it is full."""
    kernels: KernelDurations = KernelDurations()
    launches: KernelCounts = KernelCounts()
    """Kernels that each phase's time is divided into equally; with launch_us 0 their number makes no difference."""
    launch_us: float = Field(0, ge=0, le=100_000)
    """Host time per kernel in microseconds. The device may end a kernel, and be idle, before the next is launched."""
    launch_how: How = "busy"
    """How the host spends launch_us: busy spends CPU time of the main thread; sleep waits without using a core."""
    recorded: str | None = None
    """A JSON file {"forward_ms": [...], ...} of recorded kernel durations per step, replayed in order and repeated."""

    @model_validator(mode="after")
    def _launching_ends(self) -> EmulatedDevice:
        for name, count in self.launches.model_dump().items():
            if (whole_ms := count * self.launch_us / 1e3) > 60_000:
                raise ValueError(
                    f"launching {name} takes {count} x {self.launch_us:g} us = {whole_ms / 1e3:g} s; "
                    "allowed: at most 60 s a phase"
                )
        return self


def _device_tag(value: Any) -> str:
    return "[emulated]" if isinstance(value, dict | EmulatedDevice) else "[device]"


# pydantic puts these tags into its error locations. The brackets mark them, and messages leave them out.
Device = Annotated[
    Annotated[Literal["auto", "cpu", "cuda"], Tag("[device]")] | Annotated[EmulatedDevice, Tag("[emulated]")],
    Discriminator(_device_tag),
]


class ComputeConfig(Config):
    """Where and how the model is computed."""

    device: Device = "auto"
    """auto, cpu, cuda, or {emulated: PROFILE}: an emulated device, timed by its profile."""
    precision: Literal["fp32", "tf32", "bf16", "pure-bf16", "fp16"] = "fp32"
    """bf16: autocast with fp32 master weights; pure-bf16: weights, gradients and moments in bf16 too (8 bytes each).
    tf32: fp32 whose matrix products round their inputs to 10 bits of mantissa (CUDA, compute capability 8.0 or more).
    fp16: autocast and a scaled loss (torch.amp.GradScaler); steps whose gradients overflow are skipped and counted."""
    threads: int | None = Field(None, ge=1)
    """Intra-op threads of torch on the CPU; None: torch's default."""
    work: Literal["model", "none"] = "model"
    """none: batches are fetched and dropped (the data-only control sets it)."""
    check_finite: bool = True
    """Stop on a gradient norm that is NaN or infinite (fp16: on 32 skipped steps in a row)."""
    flops_convention: Literal["palm", "causal-half", "non-embedding"] = "palm"
    """How the model's FLOPs per token are counted, of which MFU follows (see trainer/devices/flops.py)."""
    sync: Literal["late", "norm", "every-step"] = "late"
    """When the host reads loss and gradient norm. late: one step later, when the next is launched, so that the device
    never runs dry. norm: the norm at once, before the optimizer, the losses with each log line. every-step: both at
    once, as ``loss.item()`` in a loop does. On a CPU all values are known at once, and late is norm."""
    extra_forwards: int = Field(0, ge=0, le=64)
    """Compute every forward pass this many more times, without gradients (a dose control of device time sets it)."""
    inject: ComputeInject | None = None

    @property
    def emulated(self) -> EmulatedDevice | None:
        """The emulated device, where there is one."""
        return self.device if isinstance(self.device, EmulatedDevice) else None

    @model_validator(mode="after")
    def _a_cpu_has_no_tf32(self) -> ComputeConfig:
        if self.precision == "tf32" and self.device == "cpu":
            raise ValueError(
                "precision: tf32 needs a CUDA device of compute capability 8.0 or more, but device is cpu; allowed "
                "there: fp32, bf16, pure-bf16, fp16"
            )
        return self

    @model_validator(mode="after")
    def _sync_has_a_place(self) -> ComputeConfig:
        if self.inject is not None and self.inject.sync_ms and not self.check_finite:
            raise ValueError(
                "inject.sync_ms is spent where check_finite blocks; allowed: check_finite true, or sync_ms 0"
            )
        return self


class CheckpointConfig(Config):
    """When the state of the training is saved, so that a killed one is resumed where it was.

    Give at most one of every_steps, every_minutes.
    """

    every_steps: int | None = Field(None, ge=1, le=1_000_000_000)
    """Optimizer steps from one checkpoint to the next."""
    every_minutes: float | None = Field(None, gt=0, le=10_000)
    """Minutes from one checkpoint to the next; 10 where neither is given."""
    keep: int = Field(2, ge=1, le=10_000)
    """How many stay, the newest; with 1 there is none left where that one is damaged."""
    asynchronous: bool = True
    """Copy the state within the step and write it beside the next ones; false: the step waits until it is written."""

    @model_validator(mode="after")
    def _one_interval(self) -> CheckpointConfig:
        if self.every_steps is not None and self.every_minutes is not None:
            raise ValueError("give at most one of every_steps, every_minutes")
        return self

    @property
    def interval_minutes(self) -> float:
        """Minutes between checkpoints where steps do not say when."""
        return 10.0 if self.every_minutes is None else self.every_minutes


class Torchrun(Config):
    """The ranks of a run, under torchrun's names for them."""

    nproc: int = Field(1, ge=1, le=1024)
    """Processes (ranks) on this machine; on CUDA each has a card of its own."""
    nnodes: int = Field(1, ge=1, le=1024)
    """Machines; only 1 can be started from here."""

    @model_validator(mode="after")
    def _one_machine(self) -> Torchrun:
        if self.nnodes > 1:
            raise ValueError(
                f"nnodes {self.nnodes}: only the ranks of one machine can be started and suspended from here; "
                "allowed: nnodes 1 (a program of your own on several: harness exec -- torchrun --nnodes ...)"
            )
        return self


class LaunchConfig(Config):
    """Data-parallel training: every rank computes its own part of the global batch (ranks x data.batch_size)."""

    torchrun: Torchrun = Torchrun()
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """ddp: each rank holds the whole model (DistributedDataParallel); fsdp: a share of it (FSDP2, fully_shard)."""
    timeout_s: float = Field(120, gt=0, le=86_400)
    """Waiting for the other ranks ends the run after this many seconds."""


# Keys that came later, by what every run did before: a study, a baseline or a state of the code without one meant that.
BEFORE: Mapping[str, Json] = {"compute.sync": "norm"}


class TrainerConfig(Config):
    """One run of the trainer."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    compute: ComputeConfig = ComputeConfig()
    checkpoint: CheckpointConfig | None = None
    """Save the state of the training as it goes. `harness train` does in any case; a study removes what it saved."""
    evaluation: EvaluationConfig | None = None
    steps: int = Field(40, ge=1, le=10_000_000)
    """Measured steps."""
    warmup_steps: int = Field(5, ge=0, le=1_000_000)
    """Steps before the measured ones: kept in the tables, marked warmup, left out of every figure."""
    log_every: int = Field(10, ge=1)
    """Steps between log lines."""
    seed: int = Field(0, ge=0, lt=2**62)
    """Seed of weights and document order; block b of a study uses seed + b."""
    launch: LaunchConfig | None = None
    """Train in several processes; None: in one."""

    @property
    def ranks(self) -> int:
        """How many processes train together."""
        return 1 if self.launch is None else self.launch.torchrun.nproc

    @property
    def user_functions(self) -> tuple[tuple[str, str], ...]:
        """The code of the user's own that is called: keys, and MODULE:FUNCTION."""
        validation = self.evaluation.source if self.evaluation is not None else None
        named = (
            ("data.source", self.data.source),
            ("model.factory", self.model.factory),
            ("evaluation.source", validation),
        )
        return tuple((key, name) for key, name in named if name is not None)

    @model_validator(mode="after")
    def _ranks_compute(self) -> TrainerConfig:
        if self.ranks > 1 and self.compute.emulated is not None:
            raise ValueError(
                "launch: an emulated device exchanges nothing with another; allowed: compute.device auto, cpu, cuda "
                "(harness whatif --set ranks=N predicts several)"
            )
        if self.ranks > 1 and self.checkpoint is not None:
            raise ValueError("checkpoint: the state of several ranks is not saved yet; allowed: launch with nproc 1")
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
    def _a_model_of_ones_own_is_computed(self) -> TrainerConfig:
        if self.model.factory is not None and self.compute.emulated is not None:
            raise ValueError(
                "model.factory: an emulated device takes its times from the shape of a preset; allowed: "
                "compute.device auto, cpu, cuda"
            )
        if self.model.factory is not None and self.model.attention != "auto":
            raise ValueError("model.attention: a model.factory chooses its attention itself; allowed: auto")
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
                "evaluation: which documents of data.source are held out is not known; allowed: evaluation.source "
                "MODULE:FUNCTION, which gives them, or no evaluation"
            )
        if self.data.source is None and evaluation.source is not None:
            raise ValueError("evaluation.source: goes with data.source only; allowed here: fraction or documents")
        return self


def recorded_config(content: JsonObject) -> TrainerConfig:
    """The configuration of a run from its record, which may be older than some keys. Raises pydantic's error."""
    whole = dict(content)
    for dotted, value in BEFORE.items():
        section, key = dotted.split(".")
        if isinstance(inner := whole.get(section, {}), Mapping) and key not in inner:
            whole[section] = {**inner, key: value}
    return TrainerConfig.model_validate(whole)
