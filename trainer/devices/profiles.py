"""Loads device profiles: dense peak rates and bandwidths, each with its source (profiles/devices, or a user's)."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from trainer.errors import InputError, literal, one_line
from trainer.files import expanded

SPARSE = ("sparse", "sparsity")
SHOWN_CHARACTERS = 60  # characters of a wrong value
MERGE = "tag:yaml.org,2002:merge"  # the key <<
MAX_PROFILE_BYTES = 2**18  # size of a file; the longest shipped one has 4 kB
MAX_PROFILE_VALUES = 10_000  # after expanding aliases; a profile has less than a hundred
PLAIN = {"a valid tuple": "a list", "a valid string": "text", "a valid ": "a "}


class _ProfileLoader(yaml.SafeLoader):
    """Loader of YAML that accepts safe tags only. A repeated key is an error (PyYAML silently takes the last)."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge the mappings of ``<<`` into ``node``, unless that is a cycle or expands to too many keys."""
        for key, value in node.value:
            if key.tag == MERGE and value is node:
                message = "an alias refers to a mapping that contains it (cycle)"
                raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
        super().flatten_mapping(node)
        if len(node.value) > MAX_PROFILE_VALUES:
            message = f"merges more than {MAX_PROFILE_VALUES} keys (an alias that repeats)"
            raise yaml.constructor.ConstructorError(None, None, message, node.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                if key.value in lines:
                    message = f"duplicate key {key.value} (lines {lines[key.value]} and {line})"
                    raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
                lines[key.value] = line
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Mapping[str, object]:
    """Return the mapping in ``path``. Raises InputError, also for a key with "sparse": rates are dense."""
    try:
        with path.open("rb") as file:  # A device such as /dev/zero never ends.
            text = file.read(MAX_PROFILE_BYTES + 1)
        if len(text) > MAX_PROFILE_BYTES:
            raise InputError(f"{path}: more than {MAX_PROFILE_BYTES // 1024} KiB; give a device profile")
        content = yaml.load(text.decode("utf-8"), _ProfileLoader)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; give a device profile (YAML)") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise InputError(f"{path}: {line}not readable YAML: {one_line(error.problem or error)}") from error
    except InputError:
        raise
    # Examples: no text; a date like 2026-13-01; nested too deep.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not readable YAML: {one_line(error)}") from error
    # Checked first, because a message that shows a value must not expand a billion aliases.
    keys = list(_keys(content, path))
    if not isinstance(content, dict):
        raise InputError(f"{path}: must be a mapping of keys (name, peak_flops_per_s, ...); got {_shown(content)}")
    for key in keys:
        if any(word in key.lower() for word in SPARSE):
            raise InputError(f"{path}: {key}: peaks are dense; halve a rate with 2:4 sparsity and say so in its source")
    return content


def problem(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first problem of ``error`` as "key: problem; allowed values", with the number of further problems."""
    errors = error.errors(include_url=False)
    # A misspelt key is also a missing key. The misspelt one is reported first.
    fault = next((details for details in errors if details["type"] == "extra_forbidden"), errors[0])
    place = [str(part) for part in fault["loc"] if part != "[key]"]
    kind, shown = fault["type"], _shown(fault["input"])
    if kind == "extra_forbidden":
        allowed = _allowed(model, place[:-1])
        matches = get_close_matches(place[-1], allowed, n=1)
        guess = f"; did you mean {matches[0]!r}?" if matches else ";"
        message = f"unknown key{guess} allowed: {', '.join(allowed)}"
    elif kind == "missing":
        message = "this key is required"
    elif kind == "value_error":
        message = str(fault["ctx"]["error"])
    elif kind == "literal_error":
        message = f"unknown dtype; allowed: {fault['ctx']['expected']}".replace("'", "").replace(" or ", ", ")
    elif kind == "too_short":
        message = "give at least one"
    elif kind in ("model_type", "dict_type"):
        message = f"must be a mapping of keys; got {shown}"
        if allowed := _allowed(model, place):
            message += f"; allowed: {', '.join(allowed)}"
    else:
        message = fault["msg"].replace("Input should be", "must be")
        for wording, plain in PLAIN.items():
            message = message.replace(wording, plain)
        message += f"; got {shown}"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return one_line(f"{'.'.join(place)}: {message}{more}" if place else message + more)


def _allowed(model: type[BaseModel], place: list[str]) -> list[str]:
    """Return the allowed keys of ``model``'s section at ``place``; empty for a table by dtype or no section."""
    section: type[BaseModel] | None = model
    inside_table = False
    for part in place:
        if inside_table:  # the key of a table by dtype; its value is the section
            inside_table = False
            continue
        field = (
            next((f for name, f in section.model_fields.items() if part in (name, f.alias)), None) if section else None
        )
        annotation = field.annotation if field else None
        inside_table = bool(get_args(annotation))
        candidates = (*get_args(annotation), annotation)
        section = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    if section is None or inside_table:
        return []
    return [field.alias or name for name, field in section.model_fields.items()]


def _keys(content: Any, path: Path) -> Iterator[str]:
    """Yield every key in ``content``, in order. Raises InputError if aliases make it too large or cyclic."""
    count = 0
    waiting: list[tuple[str | None, Any]] = [(None, content)]
    while waiting:
        key, value = waiting.pop()
        count += 1
        if count > MAX_PROFILE_VALUES:
            raise InputError(f"{path}: more than {MAX_PROFILE_VALUES} values (an alias that repeats, or a cycle)")
        if key is not None:
            yield key
        if isinstance(value, dict):
            waiting += reversed([(str(inner), item) for inner, item in value.items()])
        elif isinstance(value, list | tuple):
            waiting += reversed([(None, item) for item in value])


def _shown(value: object) -> str:
    text = "null" if value is None else literal(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}..."


FOLDER = Path(__file__).parents[2] / "profiles" / "devices"
Dtype = Literal["bf16", "fp16", "tf32", "fp32", "fp8"]


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value


Text = Annotated[str, AfterValidator(_not_blank)]
Rate = Annotated[float, BeforeValidator(_no_truth_value), Field(gt=0, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Figure(_Section):
    """A figure and its source, or null and why it is unknown."""

    value: Rate | None
    source: Text | None = None
    """The document, its words, and how the figure follows from them: "1,979 TFLOPS with sparsity, / 2"."""
    why: Text | None = None

    @model_validator(mode="after")
    def _sourced(self) -> Figure:
        if self.value is not None and self.source is None:
            raise ValueError("a figure needs a source; give the document and its statement, or value: null and why")
        if self.value is None and self.why is None:
            raise ValueError("value: null needs why (the reason)")
        return self


class Known(Figure):
    """A figure that every profile must give."""

    value: Rate


class Price(Figure):
    """US dollars per device and hour, from one vendor on one day."""

    date: datetime.date | None = None

    @model_validator(mode="after")
    def _dated(self) -> Price:
        if self.value is not None and self.date is None:
            raise ValueError("a price needs a date (YYYY-MM-DD)")
        return self


class Link(_Section):
    """The link between host and device memory, such as PCIe: its name and its bandwidth."""

    name: Text
    bandwidth: Known = Field(alias="bandwidth_bytes_per_s")
    """Bandwidth in one direction, bytes/s."""


class DeviceProfile(_Section):
    """One device. Figures are in FLOP/s, bytes/s and bytes (decimal, as datasheets print them)."""

    name: Text
    title: Text
    device_names: tuple[Text, ...] = Field(min_length=1)
    """Names that ``torch.cuda.get_device_name()`` gives: exact, or fnmatch patterns; case-sensitive."""
    device_names_source: Text
    measured: bool = False
    """True if the peaks are measured rates, not theoretical ones (a CPU: see trainer/devices/calibrate.py)."""
    peak: dict[Dtype, Figure] = Field(alias="peak_flops_per_s", min_length=1)
    """Dense peak rates, FLOP/s."""
    achievable: dict[Dtype, Figure] = Field({}, alias="achievable_matmul_flops_per_s")
    """The best published measurement of a matrix product, by dtype."""
    memory: Known = Field(alias="memory_bytes")
    memory_bandwidth: Known = Field(alias="memory_bandwidth_bytes_per_s")
    link: Link
    price: Price = Field(alias="price_per_hour_usd")
    documents: tuple[Text, ...] = ()
    """The sources' full titles and where they were read."""
    notes: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _achievable_below_peak(self) -> DeviceProfile:
        for dtype, figure in self.achievable.items():
            peak = self.peak.get(dtype)
            limit = peak.value if peak is not None else None
            if figure.value is not None and limit is not None and figure.value > limit:
                raise ValueError(f"achievable_matmul_flops_per_s.{dtype}: {figure.value:g} is above the peak {limit:g}")
        return self

    def peak_flops_per_s(self, dtype: str) -> float:
        """Return the dense peak for ``dtype`` in FLOP/s. Raises InputError if the profile has none."""
        return self._peak(dtype)[0]

    def peak_source(self, dtype: str) -> str:
        """Return the source of the dense peak for ``dtype``. Raises InputError if the profile has no such peak."""
        return self._peak(dtype)[1]

    def _peak(self, dtype: str) -> tuple[float, str]:
        peaks = {
            str(name): (figure.value, figure.source)
            for name, figure in self.peak.items()
            if figure.value is not None and figure.source is not None
        }
        if dtype not in peaks:
            raise InputError(f"device profile {self.name}: no peak for {dtype}; allowed: {', '.join(peaks) or 'none'}")
        return peaks[dtype]

    @property
    def achievable_matmul_flops_per_s(self) -> dict[str, float]:
        """Measured rates of matrix products in FLOP/s, by dtype. Dtypes without a known rate are left out."""
        return {dtype: figure.value for dtype, figure in self.achievable.items() if figure.value is not None}

    @property
    def memory_bytes(self) -> float:
        return self.memory.value

    @property
    def memory_bandwidth_bytes_per_s(self) -> float:
        return self.memory_bandwidth.value

    @property
    def link_bandwidth_bytes_per_s(self) -> float:
        return self.link.bandwidth.value

    @property
    def price_per_hour_usd(self) -> float | None:
        return self.price.value


def profile_names() -> list[str]:
    """Return the names of the shipped profiles, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def is_file_name(name: str) -> bool:
    """Return True if ``name`` is the path of a user's file, False if it is the name of a shipped profile."""
    return "/" in name or name.endswith((".yaml", ".yml"))


def load_profile(name: str) -> DeviceProfile:
    """Load a shipped profile by name, or a YAML file by path. Raises InputError if there is none."""
    if is_file_name(name):
        return read_profile(expanded(name))
    names = profile_names()
    if name in names:
        return _shipped(name)
    matches = get_close_matches(name, names, n=1)
    guess = f"; did you mean {matches[0]!r}?" if matches else ";"
    raise InputError(f"unknown device profile {name!r}{guess} allowed: {', '.join(names)}, or a path to a YAML file")


def read_profile(path: Path) -> DeviceProfile:
    """Read a profile from a YAML file. Raises InputError, one line: file, key, allowed values."""
    content = read_yaml(path)
    try:
        return DeviceProfile.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{path}: {problem(error, DeviceProfile)}") from error


@cache
def _shipped(name: str) -> DeviceProfile:
    return read_profile(FOLDER / f"{name}.yaml")


def find_profile(device_name: str) -> DeviceProfile | None:
    """Return the shipped profile whose patterns match torch's ``device_name``; None if no profile matches."""
    for profile in map(_shipped, profile_names()):
        if any(fnmatchcase(device_name, pattern) for pattern in profile.device_names):
            return profile
    return None


def matmul_dtype(precision: str) -> str:
    """Return the dtype of matrix products: bf16 for both bf16 precisions, fp32 without TF32, as torch has it."""
    return {"fp32": "fp32", "tf32": "tf32", "fp16": "fp16"}.get(precision, "bf16")
