"""Find the cards that a run may use: read CUDA_VISIBLE_DEVICES as CUDA does, and open these devices in NVML."""

from __future__ import annotations

import os
from typing import Any, NamedTuple


class Card(NamedTuple):
    """One device that the run may use, found by :func:`find_cards`.

    ``ordinal``: its number in CUDA. ``slice``: NVML handle of a MIG slice; None for a whole card.
    """

    ordinal: int
    name: str
    handle: Any  # handle of the whole card
    slice: Any | None = None

    @property
    def source(self) -> str:
        return f"nvml:{self.ordinal}"


def visible(declared: str | None, uuids: list[str]) -> list[int | str]:
    """Return the devices that CUDA shows, in its order: indices into ``uuids``, or UUIDs of MIG slices.

    ``declared``: value of CUDA_VISIBLE_DEVICES; None if unset, which allows all devices.
    ``uuids``: UUIDs of all cards, in NVML's order (PCI bus).
    The rules are CUDA's: an entry is an index or the (beginning of a) UUID.
    The first entry that is neither ends the list.
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
    """Return (visible cards, problems).

    A problem is a line about a card that cannot be read or whose number is uncertain.
    ``nvml``: module pynvml, initialised. Raises NVMLError if the cards cannot be counted.
    """
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
            "PCI bus, so samples may bear another card's number; CUDA_DEVICE_ORDER=PCI_BUS_ID makes them agree"
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
