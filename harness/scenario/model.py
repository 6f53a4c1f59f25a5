"""Define the scenario file: a question, a base configuration, arms, controls, comparisons, probes, repeats.

Relative paths are relative to the current directory, that of ``extends`` to the file that contains it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    SkipValidation,
    Tag,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from harness.scenario.claims import CLAIMS, SHARES, ClaimName, Figure
from harness.scenario.overrides import Dosed
from trainer.config import Config
from trainer.json_types import Json
from trainer.user_code import named_function

Control = Literal["a-a", "ideal-data", "data-only", "dose"]
MAX_NAME = 80  # bytes; matrix point and control are appended to it, and a folder name may have 255
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def _folder_name(name: str) -> str:
    if not NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise ValueError(
            f"not usable as a folder name; allowed: letters, digits, '.', '_', '-', "
            f"first a letter, digit or '_', at most {MAX_NAME} characters"
        )
    return name


Name = Annotated[str, AfterValidator(_folder_name)]


def _module_name(name: str) -> str:
    if not name.isidentifier():
        raise ValueError("not a module name; give an importable name such as tiktoken")
    return name


ModuleName = Annotated[str, AfterValidator(_module_name)]
TRACKERS = ("jsonl", "mlflow", "tensorboard", "wandb", "trackio")


def _tracker(name: str) -> str:
    if name in TRACKERS:
        return name
    try:
        return named_function(name)
    except ValueError:
        raise ValueError(f"no such tracker; allowed: {', '.join(TRACKERS)}, or MODULE:FUNCTION of your own") from None


class Compare(Config):
    """Two arms: either names before the matrix (compared at each of its points), or exact names of two matrix arms."""

    baseline: str
    candidate: str


class Claim(Config):
    """A common claim (harness.scenario.claims) and the arms that decide it. In a matrix, names are exact."""

    claim: ClaimName
    arm: str
    baseline: str | None = None
    """Arm that `arm` is compared with. Claims about a share of a step have none."""

    @model_validator(mode="after")
    def _has_its_baseline(self) -> Claim:
        if CLAIMS[self.claim].ratio != (self.baseline is not None):
            needs = "needs a baseline" if self.baseline is None else "must not have a baseline"
            raise ValueError(f"the claim {self.claim!r} {needs}")
        return self


class OwnClaim(Config):
    """A claim with its own bounds: a figure of one arm, or its ratio to the figure of a second arm."""

    figure: Figure
    """`tokenizing speed` (1000 tokens per ms of tokenization), `chunk ms` (data work for one batch), `step ms`,
    `tokens/s`, `training speed` (trained tokens/s), `sync share`, `tokenization share` and `device use` (of the step,
    0 to 1), `cpu use` (cores, all processes), `stored bytes per byte of text` (of pretokenized data)."""
    arms: list[str] = Field(min_length=1, max_length=2)
    """One arm: its figure. Two arms: figure of the first / figure of the second. In a matrix, names are exact."""
    low: float = Field(alias="from", ge=0, allow_inf_nan=False)
    """Lower bound, in the figure's unit; for two arms a ratio."""
    high: float = Field(alias="to", ge=0, allow_inf_nan=False)
    """Upper bound, in the same unit as ``from``."""
    text: str = Field(default="", max_length=200)
    """Text of the claim in the report; empty: generated from the other keys."""

    @model_validator(mode="after")
    def _is_a_range(self) -> OwnClaim:
        if self.low > self.high:
            raise ValueError(f"from {self.low:g} is above to {self.high:g}")
        if len(self.arms) == 1 and self.figure in SHARES and self.high > 1:
            raise ValueError(f"{self.figure} is a share from 0 to 1; lower `to` ({self.high:g})")
        if len(set(self.arms)) < len(self.arms):
            raise ValueError(f"{self.arms[0]} is given twice in arms; give two different arms")
        return self

    @model_serializer(mode="plain")
    def _as_written(self) -> dict[str, Json]:
        return {"figure": self.figure, "arms": [*self.arms], "from": self.low, "to": self.high, "text": self.text}

    @property
    def arm(self) -> str:
        return self.arms[0]

    @property
    def baseline(self) -> str | None:
        return self.arms[1] if len(self.arms) > 1 else None


def _claim_tag(given: Any) -> str:
    is_own = isinstance(given, OwnClaim) or (isinstance(given, dict) and "claim" not in given)
    return "[figure]" if is_own else "[claim]"


AnyClaim = Annotated[Annotated[Claim, Tag("[claim]")] | Annotated[OwnClaim, Tag("[figure]")], Discriminator(_claim_tag)]


class TorchProfilerConfig(Config):
    """torch.profiler's schedule, in steps, and what it records. Its steps never count as measured."""

    wait: int = Field(1, ge=0, le=10_000)
    warmup: int = Field(2, ge=0, le=1000)
    active: int = Field(3, ge=1, le=1000)
    """Recorded steps. They follow `wait` steps without a profiler in the main process and `warmup` dropped steps."""
    repeat: int = Field(1, ge=1, le=100)
    shapes: bool = False
    memory: bool = False
    """Record every allocation and release, for the memory timeline."""
    stack: bool = False
    flops: bool = False
    workers: bool = True
    """Also record loader workers, which torch.profiler alone does not see. Each records from its start to the end of
    the last window, because batches are built ahead (at most 2,000 batches or about 50,000 events each)."""


class PySpyConfig(Config):
    """py-spy's sampling of the trainer and its workers. Its steps never count as measured."""

    rate_hz: int = Field(100, ge=1, le=1000)
    seconds: float = Field(5, ge=0.5, le=600)
    """Sampling time in seconds. It is spent twice, because the flame graph needs a second pass."""
    native: bool = False
    """Include C, C++ and Rust frames."""
    gil: bool = False
    """Sample only threads that hold the GIL."""
    nonblocking: bool = False
    """Do not pause the trainer for a sample: cheaper, but some samples are inconsistent."""


def _switched(value: Any) -> Any:
    """Replace `true` by {} (a probe with its defaults), and `false` by None (no such probe). Return other values
    unchanged.
    """
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


TorchProfilerSetting = Annotated[
    TorchProfilerConfig | Literal["auto"] | None,
    BeforeValidator(_switched, json_schema_input_type=TorchProfilerConfig | Literal["auto"] | bool | None),
]
PySpySetting = Annotated[
    PySpyConfig | None, BeforeValidator(_switched, json_schema_input_type=PySpyConfig | bool | None)
]


def _no_number(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):  # 1 equals true
        raise ValueError(f"must be 'auto', true or false; got {value}")
    return value


def _single(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise ValueError(f"must be one value; got {value!r:.60}")
    return value


EditValue = Annotated[bool | int | float | str, BeforeValidator(_single)]


class ProbesConfig(Config):
    """Measurements besides the steps. Probes that would disturb the steps get a separate run of each arm."""

    host: bool = True
    """Sample CPU, memory, disk and limits of the run's processes, and the load by other processes."""
    nvml: Annotated[Literal["auto", True, False], BeforeValidator(_no_number)] = "auto"
    """Sample NVIDIA's counters: power, clocks, utilisation, throttling. auto: if there is a driver."""
    sample_hz: float = Field(10, ge=0.1, le=100)
    """Readings per second of host and nvml, taken by a separate process."""
    torch_profiler: TorchProfilerSetting = "auto"
    """Record operators and kernels of a few steps, in an extra run of every arm. true: with the defaults. auto: no
    extra run, but 3 steps after the measured ones of an arm's first run, if CUDA events leave over 5 % of a step open.
    false: never."""
    py_spy: PySpySetting = None
    """Sample stacks of the trainer and its workers, in the same extra run. true: with the defaults."""
    calibrate: bool = False
    """Measure the cost of each probe: run the first baseline without probes and with each probe alone, interleaved."""
    timeline_steps: int = Field(20, ge=1, le=10_000)
    """Maximum number of steps of each arm in timeline.json.gz: the last ones of its last repetition."""

    @property
    def profiled_run(self) -> TorchProfilerConfig | None:
        """Settings of torch.profiler for a run of its own; None without such a run."""
        return None if self.torch_profiler == "auto" else self.torch_profiler


class LimitsConfig(Config):
    """Timeouts of `harness run`. A run that exceeds one fails, and the study continues with the next run."""

    start_s: float = Field(900, gt=0, le=86_400)
    """Seconds until a run's first repetition: imports, model and data path. Also limits a trial of data.source."""
    silence_s: float = Field(600, gt=0, le=86_400)
    """Seconds until a run's next step, or its next output between repetitions. Not the limit of a whole repetition."""
    tracking_s: float = Field(120, gt=0, le=86_400)
    """Seconds for all trackers together (key track), after every run has ended. Unfinished trackers are stopped."""


class BudgetConfig(Config):
    """Limits of what may be spent. Give usd, hours, or both; the first one reached counts."""

    usd: float | None = Field(None, gt=0, le=1e9, allow_inf_nan=False)
    """US dollars. They require a price: price_usd_per_hour, or the price in the device's profile."""
    hours: float | None = Field(None, gt=0, le=1e6, allow_inf_nan=False)
    """Wall time in hours: of a training from the command's start, of a study from the first run's start. It includes
    the earlier measurement of the first steps, but not measurements that were refused or killed."""

    @model_validator(mode="after")
    def _limits_something(self) -> BudgetConfig:
        if self.usd is None and self.hours is None:
            raise ValueError("limits nothing; give usd, hours or both, as in {hours: 6}")
        return self


# Values from harness.scenario.yaml. TrainerConfig checks them arm by arm and reports the errors.
Unchecked = Annotated[Json, SkipValidation, WithJsonSchema({})]


class Scenario(Config):
    """One scenario file, resolved: ``extends`` is merged, dotted keys of ``base`` are nested."""

    name: Name
    """Name of the study's folder under results/."""
    question: str
    """Question that the scenario answers; the first line of the report."""
    extends: str | None = None
    """Another scenario file, relative to this one. This file overrides it key by key (lists are replaced)."""
    base: dict[str, Unchecked] = Field(default_factory=dict)
    """The trainer's configuration that all arms share; nested or dotted keys."""
    arms: Annotated[dict[Name, dict[str, Unchecked] | None], Field(min_length=1)]
    """Named variants: dotted keys with the values that differ from base; null means no difference."""
    matrix: dict[str, Annotated[list[Unchecked], Field(min_length=1)]] = Field(default_factory=dict)
    """Dotted keys and their values. Every arm runs with every combination."""
    controls: list[Control] = Field(default_factory=list)
    """Automatic variants of every arm. a-a and dose are added only to baselines, including those of `claims`."""
    dose: Annotated[list[Dosed], Field(min_length=1)] = Field(default_factory=lambda: list[Dosed](["tokenize"]))
    """Work that the dose control does 1, 2 and 4 times more often (slowdown injection): tokenize, read, device."""
    whatif: list[dict[str, EditValue]] = Field(default_factory=list)
    """Edits of `harness whatif`, such as {ranks: 16}. The report predicts every comparison under each edit."""
    compare: list[Compare] | None = None
    """Pairs of arms to compare. Default: the first arm is the baseline of all others."""
    isolated_baseline: str | None = None
    """Baseline of a table in the report. It shows each arm's data path alone (its data-only control) and its training,
    as multiples of this arm's. Give a name before the matrix (used at each of its points) or an exact name."""
    requires: dict[Name, Annotated[list[ModuleName], Field(min_length=1)]] = Field(default_factory=dict)
    """Python modules that arms need, by arm name before the matrix. If a module is not installed, the arm is left out
    of the study, and the report lists it."""
    noise_floor: float | None = Field(None, gt=0, lt=1)
    """Noise floor to use if no A/A control shows it, as a fraction (0.02: 2 %). Take it from another study."""
    claims: list[AnyClaim] = Field(default_factory=list)
    """Claims that the report judges by these arms: common claims about tokenization by name, other claims as a figure
    with bounds. A table in the report then also shows how each step spends its time."""
    target_loss: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Loss to reach. The report shows each arm's last loss, and the steps and tokens until it reached this one."""
    repeats: int = Field(5, ge=1, le=1000)
    """Number of blocks. Each block runs every arm once. Fewer than 5 are seldom enough for a decision."""
    interleave: Literal["auto", "slices", "runs"] = "auto"
    """slices: the arms of a block stay alive and alternate. runs: one after another. auto: slices if memory allows."""
    slice_steps: int = Field(10, ge=1, le=100_000)
    """Measured steps of one repetition with interleave: slices."""
    seed: int = 0
    """Seed of the order of arms within blocks (base.seed is the trainer's)."""
    track: list[Annotated[str, AfterValidator(_tracker)]] = Field(default_factory=list)
    """Experiment trackers: jsonl, mlflow (an SQLite file), tensorboard, wandb (offline), trackio (local), or your own
    MODULE:FUNCTION. After all runs have ended, each gets the parameters, losses, learning rates and speeds of every
    arm's runs, and the report. Each runs in its own process and has a folder in tracking/ under --out. All except jsonl
    need the extra of the same name."""
    budget: BudgetConfig | None = None
    """Limits of what `harness run` and `harness train` may spend. They first measure a few steps of every arm, and do
    not start if the estimate exceeds the budget. At the limit they stop and keep what was done."""
    price_usd_per_hour: float | None = Field(None, gt=0, le=1e6, allow_inf_nan=False)
    """US dollars per hour for everything that an arm runs on, for the budget and `harness cost`. It may be rounded up.
    Default: the price in the device's profile, for each device."""
    upload: str | None = None
    """Target to which `harness train` copies the training's folder, with each checkpoint and at the end:
    s3://BUCKET/FOLDER, gs://, file://, or another URL that fsspec supports. A background thread copies, so that no step
    waits. Failed copies are retried, and the local files are kept."""
    limits: LimitsConfig = LimitsConfig()
    probes: ProbesConfig = ProbesConfig()
