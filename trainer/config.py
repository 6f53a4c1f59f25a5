"""Defines the trainer's whole configuration without importing torch, so that plans can be checked quickly.

Every key has a dotted path (``data.batch_size``). A wrong value is refused with that path.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from trainer.json_types import Json
from trainer.user_code import named_function


class Config(BaseModel):
    """Base of all sections: unknown keys are errors, values never change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


Milliseconds = Annotated[float, Field(ge=0, le=60_000)]
How = Literal["busy", "sleep"]

PRESETS: dict[str, dict[str, object]] = {
    # family, layers, width, heads, kv_heads, feed-forward width, vocabulary. gpt2-small: Radford et al. 2019;
    # llama-1b / llama-8b: the published Llama 3.2 1B and Llama 3.1 8B shapes (8B with the founding study's vocabulary).
    "gpt2-tiny": {"family": "gpt2", "layers": 4, "width": 128, "heads": 4, "kv_heads": 4, "ffn_width": 512},
    "gpt2-small": {"family": "gpt2", "layers": 12, "width": 768, "heads": 12, "kv_heads": 12, "ffn_width": 3072},
    "llama-tiny": {"family": "llama", "layers": 4, "width": 128, "heads": 4, "kv_heads": 2, "ffn_width": 344},
    "llama-1b": {"family": "llama", "layers": 16, "width": 2048, "heads": 32, "kv_heads": 8, "ffn_width": 8192},
    "llama-8b": {"family": "llama", "layers": 32, "width": 4096, "heads": 32, "kv_heads": 8, "ffn_width": 14336},
}
PRESET_VOCABULARY = {"gpt2-small": 50257, "llama-1b": 128256, "llama-8b": 131072}


class ModelConfig(Config):
    """The model's shape: a preset, and any dimension of it overridden."""

    preset: Literal["gpt2-tiny", "gpt2-small", "llama-tiny", "llama-1b", "llama-8b"] = "gpt2-tiny"
    family: Literal["gpt2", "llama"] | None = None
    layers: int | None = Field(None, ge=1)
    width: int | None = Field(None, ge=1)
    heads: int | None = Field(None, ge=1)
    kv_heads: int | None = Field(None, ge=1)
    ffn_width: int | None = Field(None, ge=1)
    vocab_size: int | None = Field(None, ge=2)
    """Size of the embedding table; default: the preset's, or the tokenizer's where the preset has none."""
    factory: Annotated[str, AfterValidator(named_function)] | None = None
    """MODULE:FUNCTION of your own, which gives a torch module instead of a preset's. It is called with those of
    vocab_size, sequence_length and seed that it has a parameter for. The module is called with input_ids and labels
    (which it shifts by itself, as transformers' models do) and returns the loss, or something that holds it. Only where
    a source of your own pads before the text it is given attention_mask too."""
    arguments: dict[str, Json] = {}
    """More arguments of the factory, by name."""


class TrainTokenizer(Config):
    """A tokenizer that is trained once on the corpus, and cached by the content of corpus and settings."""

    kind: Literal["bpe", "unigram", "wordpiece"] = "bpe"
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


class OptimizerConfig(Config):
    """AdamW with linear warmup, then constant; gradients clipped by global norm."""

    learning_rate: float = Field(1e-3, gt=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    weight_decay: float = Field(0.1, ge=0)
    lr_warmup_steps: int = Field(10, ge=0)
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
    precision: Literal["fp32", "bf16", "pure-bf16"] = "fp32"
    """bf16: autocast with fp32 master weights; pure-bf16: weights, gradients and moments in bf16 too (8 bytes each)."""
    threads: int | None = Field(None, ge=1)
    """Intra-op threads of torch on the CPU; None: torch's default."""
    work: Literal["model", "none"] = "model"
    """none: batches are fetched and dropped (the data-only control sets it)."""
    check_finite: bool = True
    """Read the gradient norm on the host each step and stop on NaN or infinity: a blocking sync."""
    extra_forwards: int = Field(0, ge=0, le=64)
    """Compute every forward pass this many more times, without gradients (a dose control of device time sets it)."""
    inject: ComputeInject | None = None

    @property
    def emulated(self) -> EmulatedDevice | None:
        """The emulated device, where there is one."""
        return self.device if isinstance(self.device, EmulatedDevice) else None

    @model_validator(mode="after")
    def _sync_has_a_place(self) -> ComputeConfig:
        if self.inject is not None and self.inject.sync_ms and not self.check_finite:
            raise ValueError(
                "inject.sync_ms is spent where check_finite blocks; allowed: check_finite true, or sync_ms 0"
            )
        return self


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


class TrainerConfig(Config):
    """One run of the trainer."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    compute: ComputeConfig = ComputeConfig()
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
        named = ("data.source", self.data.source), ("model.factory", self.model.factory)
        return tuple((key, name) for key, name in named if name is not None)

    @model_validator(mode="after")
    def _ranks_compute(self) -> TrainerConfig:
        if self.ranks > 1 and self.compute.emulated is not None:
            raise ValueError(
                "launch: an emulated device exchanges nothing with another; allowed: compute.device auto, cpu, cuda "
                "(harness whatif --set ranks=N predicts several)"
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
        return self
