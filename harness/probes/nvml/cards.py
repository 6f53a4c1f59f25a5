"""Find the cards that a run may use, as CUDA_VISIBLE_DEVICES says, and define the base class of their readers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple


class Card(NamedTuple):
    """One device that the run may use. ``ordinal``: its number in CUDA. ``slice``: NVML handle of a MIG slice."""

    ordinal: int
    name: str
    handle: Any  # handle of the whole card
    slice: Any | None = None

    @property
    def source(self) -> str:
        return f"nvml:{self.ordinal}"


def visible(declared: str | None, uuids: list[str]) -> list[int | str]:
    """Return the devices that CUDA shows, in its order: indices into ``uuids``, or UUIDs of MIG slices.

    ``declared``: CUDA_VISIBLE_DEVICES, by CUDA's rules: the first entry that is no index or (beginning of a) UUID ends
    the list.
    """
    if declared is None:
        return list(range(len(uuids)))
    devices: list[int | str] = []
    for entry in (part.strip() for part in declared.split(",")):
        if entry.startswith("MIG-"):
            devices.append(entry)
            continue
        if entry.isdecimal():
            matches = [int(entry)] if int(entry) < len(uuids) else []
        else:
            matches = [index for index, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
        if len(matches) != 1:
            break
        devices += matches
    return devices


def find_cards(nvml: Any) -> tuple[list[Card], list[str]]:
    """Return (visible cards, problems, one line each). Raises NVMLError if the cards cannot be counted."""
    cards: list[Card] = []
    problems: list[str] = []
    handles: list[Any] = []
    uuids: list[str] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except nvml.NVMLError as error:
            handle, uuid = error, ""
        handles.append(handle)
        uuids.append(uuid)
    for ordinal, device in enumerate(visible(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)):
        try:
            cards.append(_card(nvml, ordinal, device, handles))
        except nvml.NVMLError as error:
            problems.append(f"nvml:{ordinal}: cannot be read: {error}")
    names = {card.name for card in cards}
    if len(names) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        problems.append(
            f"nvml: cards of different kinds ({', '.join(sorted(names))}): CUDA numbers them fastest first, NVML by "
            "PCI bus, so samples may have the wrong card's number; set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    return cards, problems


def _card(nvml: Any, ordinal: int, device: int | str, handles: list[Any]) -> Card:
    if isinstance(device, str):
        slice_ = nvml.nvmlDeviceGetHandleByUUID(device)
        card = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice_)
        return Card(ordinal, nvml.nvmlDeviceGetName(slice_), card, slice_)
    handle = handles[device]
    if isinstance(handle, nvml.NVMLError):
        raise handle
    return Card(ordinal, nvml.nvmlDeviceGetName(handle), handle)


Sample = tuple[str, float, str]  # metric, value, unit
NO_FUNCTION = "this driver is older than the metric"

# NVML_ERROR_ names for a lost card, which ends every metric
LOST = ("UNINITIALIZED", "DRIVER_NOT_LOADED", "GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND")
# NVML_ERROR_ names for a metric that stays unavailable for the whole run
FINAL = (
    "INVALID_ARGUMENT",
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "FUNCTION_NOT_FOUND",
    "ARGUMENT_VERSION_MISMATCH",
    "DEPRECATED",
)


def is_one_of(nvml: Any, error: Any, names: tuple[str, ...]) -> bool:
    """Return True if ``error`` (NVMLError) is one of the error codes ``names``, given without "NVML_ERROR_"."""
    return error.value in {getattr(nvml, f"NVML_ERROR_{name}", None) for name in names}


def reason_of(nvml: Any, error: Any) -> str:
    """Return the text that explains a missing metric, from the NVMLError that its call raised."""
    return NO_FUNCTION if is_one_of(nvml, error, ("FUNCTION_NOT_FOUND",)) else str(error)


class Reader:
    """Base class for a reader of one card's metrics, named ``text`` in messages.

    ``rate``: "fast" at every deadline, "slow" about once a second; "slow, inside" never after a repetition.
    """

    rate: Literal["fast", "slow", "slow, inside"] = "fast"

    def __init__(self, text: str) -> None:
        self.text = text
        self.failures = 0  # consecutive failures
        self._lacking: list[tuple[str, str]] = []

    def begin(self, pids: set[int]) -> None:
        """Start a repetition: read first values of counters. ``pids``: of this run. May raise NVMLError."""

    def read(self) -> Iterable[Sample]:
        """Return current values, or growth since the last reading. May raise NVMLError."""
        raise NotImplementedError

    def silent(self) -> str:
        """Return why there was never a sample although no call failed; "" if there was one or no reason is known."""
        return ""

    def take_lacking(self) -> list[tuple[str, str]]:
        """Return (name, reason) of each metric that the card was found to lack since the last call."""
        lacking, self._lacking = self._lacking, []
        return lacking
