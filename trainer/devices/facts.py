"""Looks up the facts that a run records about its device: peak, dtype and price, or why they are unknown."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.devices.calibrate import cpu_profile, not_calibrated
from trainer.devices.profiles import DeviceProfile, find_profile, matmul_dtype, profile_names
from trainer.errors import InputError


@dataclass(frozen=True)
class ProfileFacts:
    """Facts of a device's profile for one precision.

    Without a profile or peak there is only ``profile_reason``, which says why.
    """

    profile: str | None = None  # name of the profile
    profile_reason: str | None = None  # reason for a missing profile
    peak_flops_per_s: float | None = None
    dtype: str | None = None  # number format of the peak
    peak_source: str | None = None
    peak_measured: bool | None = None
    price_per_hour_usd: float | None = None  # missing without a price in the profile


def profile_facts(device_name: str, device_is_cpu: bool, precision: str, threads: int) -> ProfileFacts:
    """Return the facts of the device called ``device_name``, or of this CPU with ``threads``.

    Without a known peak they have only the reason, and MFU stays null.
    """
    profile = cpu_profile(threads) if device_is_cpu else find_profile(device_name)
    if profile is None:
        names = ", ".join(profile_names())
        unknown = f"no device profile names {device_name!r}; there are: {names}"
        return ProfileFacts(profile_reason=not_calibrated(threads) if device_is_cpu else unknown)
    return facts_of(profile, precision)


def facts_of(profile: DeviceProfile, precision: str) -> ProfileFacts:
    """Return the facts of ``profile`` for one precision, for example of an emulated device.

    Without a peak they have only the reason.
    """
    dtype = matmul_dtype(precision)
    try:
        peak = profile.peak_flops_per_s(dtype)
    except InputError as error:
        return ProfileFacts(profile_reason=str(error))
    return ProfileFacts(
        profile=profile.name,
        peak_flops_per_s=peak,
        dtype=dtype,
        peak_source=profile.peak_source(dtype),
        peak_measured=profile.measured,
        price_per_hour_usd=profile.price_per_hour_usd,
    )
