"""Shipped profiles against their datasheets; which device gets which profile; what a broken file is told."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path

import pytest

from tests.trainer.refusals import refusal
from trainer.devices.calibrate import ProfileFacts, facts_of, profile_facts
from trainer.devices.profiles import find_profile, load_profile, matmul_dtype, profile_names
from trainer.errors import InputError

# Dense TFLOP/s (bf16 and fp16, tf32, fp32, fp8), GB, GB/s, GB/s of the link one way; typed in from the datasheets, a
# second time: NVIDIA prints 2 x these where it says "with sparsity" (H100 SXM 1,979, L4 242, B200 4,500, A10G 140).
DATASHEETS = {
    "a100-80gb-pcie": (312, 156, 19.5, None, 80, 1935, 32),
    "a100-80gb-sxm": (312, 156, 19.5, None, 80, 2039, 32),
    "a10g": (70, 35, 35, None, 24, 600, 32),
    "b200": (2250, 1100, 75, 4500, 180, 7700, 64),
    "gh200": (989.4, 494.7, 66.9, 1978.9, 96, 4000, 450),
    "gh200-144gb": (989.4, 494.7, 66.9, 1978.9, 144, 4900, 450),
    "h100-pcie": (756, 378, 51, 1513, 80, 2000, 64),
    "h100-sxm": (989.4, 494.7, 66.9, 1978.9, 80, 3350, 64),
    "h200": (989.5, 494.5, 67, 1979, 141, 4800, 64),
    "l4": (121, 60, 30.3, 242.5, 24, 300, 32),
}
# ml-engineering, Maximum Achievable Matmul FLOPS table, bf16.
ACHIEVABLE = {"a100-80gb-pcie": 252.9, "a100-80gb-sxm": 271.2, "b200": 1745.0, "gh200": 821.0, "gh200-144gb": 828.6}
ACHIEVABLE |= {"h100-sxm": 794.5, "h200": 794.5}

DEVICES = {
    "NVIDIA GH200 480GB": "gh200",
    "NVIDIA GH200 120GB": "gh200",
    "NVIDIA GH200 144G HBM3e": "gh200-144gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H200": "h200",
    "NVIDIA A100-SXM4-80GB": "a100-80gb-sxm",
    "NVIDIA A100 80GB PCIe": "a100-80gb-pcie",
    "NVIDIA A10G": "a10g",
    "NVIDIA L4": "l4",
    "NVIDIA B200": "b200",
}
# Neighbours by name that are other devices, and slices of a device.
OTHERS = (
    *("", "cpu", "NVIDIA", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA GB200", "NVIDIA B300", "NVIDIA A10"),
    *("NVIDIA L40", "NVIDIA L40S", "NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "NVIDIA GeForce RTX 4090"),
    *("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GH200 144G HBM3e MIG 1g.18gb", "nvidia l4", "NVIDIA L4 "),
)


@pytest.mark.parametrize("name", DATASHEETS)
def test_figures_are_the_datasheets(name: str) -> None:
    profile = load_profile(name)
    half, tf32, fp32, fp8, memory_gb, bandwidth_gb_s, link_gb_s = DATASHEETS[name]
    expected = {"bf16": half, "fp16": half, "tf32": tf32, "fp32": fp32} | ({"fp8": fp8} if fp8 else {})
    assert {dtype: profile.peak_flops_per_s(dtype) / 1e12 for dtype in profile.peak} == pytest.approx(expected)
    assert profile.memory_bytes == memory_gb * 1e9
    assert profile.memory_bandwidth_bytes_per_s == pytest.approx(bandwidth_gb_s * 1e9)
    assert profile.link_bandwidth_bytes_per_s == link_gb_s * 1e9
    assert profile.achievable_matmul_flops_per_s.get("bf16", 0) / 1e12 == pytest.approx(ACHIEVABLE.get(name, 0))


def test_every_shipped_profile_is_checked_and_named_as_its_file() -> None:
    assert profile_names() == sorted(DATASHEETS)
    assert [load_profile(name).name for name in profile_names()] == profile_names()
    assert not any(load_profile(name).measured for name in profile_names())


@pytest.mark.parametrize("name", ACHIEVABLE)
def test_measured_products_reach_more_than_half_of_the_peak(name: str) -> None:
    """They would not, if the peak were the sparse one."""
    profile = load_profile(name)
    for dtype, rate in profile.achievable_matmul_flops_per_s.items():
        assert 0.65 < rate / profile.peak_flops_per_s(dtype) < 0.9


def test_no_device_is_claimed_twice() -> None:
    for one, other in combinations(map(load_profile, profile_names()), 2):
        for a in one.device_names:
            for b in other.device_names:
                assert not fnmatchcase(a, b), (one.name, other.name)
                assert not fnmatchcase(b, a), (one.name, other.name)
    for device in (*DEVICES, *OTHERS):
        claims = [
            name
            for name in profile_names()
            if any(fnmatchcase(device, pattern) for pattern in load_profile(name).device_names)
        ]
        assert len(claims) == (device in DEVICES), (device, claims)
        found = find_profile(device)
        assert (found and found.name) == DEVICES.get(device)


def test_precisions() -> None:
    precisions = ("fp32", "tf32", "bf16", "pure-bf16", "fp16")
    assert [matmul_dtype(precision) for precision in precisions] == ["fp32", "tf32", "bf16", "bf16", "fp16"]


@pytest.mark.parametrize(("name", "line"), [
    ("gh20", "unknown device profile 'gh20'; did you mean 'gh200'? allowed: a100-80gb-pcie, a100-80gb-sxm, "),
    ("tpu", "unknown device profile 'tpu'; allowed: a100-80gb-pcie, a100-80gb-sxm, a10g, b200, gh200, "),
    ("own.yaml", "own.yaml: no such file; give a device profile (YAML)"),
    ("no/such", "no/such: no such file; give a device profile (YAML)"),
    (".", "unknown device profile '.'; allowed: "),
    ("./", ".: cannot be read (Is a directory)"),
])  # fmt: skip
def test_a_profile_that_is_not_there(name: str, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(load_profile, name).startswith(line)


OWN = """\
name: toy
title: A toy
device_names: ["Toy *"]
device_names_source: its box
peak_flops_per_s:
  bf16: {value: 2e12, source: its box}
  fp8: {value: null, why: its box does not say}
achievable_matmul_flops_per_s:
  bf16: {value: 1.5e12, source: measured}
memory_bytes: {value: 1e9, source: its box}
memory_bandwidth_bytes_per_s: {value: 1.0e+10, source: its box}
link:
  name: string
  bandwidth_bytes_per_s: {value: 1_000_000, source: its box}
price_per_hour_usd: {value: 0.01, date: 2026-01-31, source: the shop}
"""


def own(tmp_path: Path, text: str = OWN) -> str:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    return str(path)


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    profile = load_profile(own(tmp_path))
    assert (profile.name, profile.peak_flops_per_s("bf16")) == ("toy", 2e12)
    assert profile.achievable_matmul_flops_per_s == {"bf16": 1.5e12}
    assert (profile.memory_bytes, profile.memory_bandwidth_bytes_per_s) == (1e9, 1e10)
    assert (profile.link_bandwidth_bytes_per_s, profile.price_per_hour_usd) == (1e6, 0.01)
    with pytest.raises(InputError, match=r"^device profile toy: no peak for fp8; allowed: bf16$"):
        profile.peak_flops_per_s("fp8")
    assert facts_of(profile, "pure-bf16") == ProfileFacts(
        profile="toy",
        peak_flops_per_s=2e12,
        dtype="bf16",
        peak_source="its box",
        peak_measured=False,
        price_per_hour_usd=0.01,
    )
    assert facts_of(profile, "fp32") == ProfileFacts(
        profile_reason="device profile toy: no peak for fp32; allowed: bf16"
    )


FIGURE_KEYS = "value, source, why"
MERGES = "a0: &a0 {x: 1, y: 2}\n" + "".join(  # a billion keys, but for the last few lines of a file
    f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}\n" for level in range(1, 10)
)
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(("old", "new", "line"), [
    ("name: toy", "nam: toy", "nam: unknown key; did you mean 'name'? allowed: name, title, "),
    ("title: A toy", "title: A toy\ncolour: red", "colour: unknown key; allowed: name, title, device_names, "),
    ("title: A toy", "title: ' '", "title: must not be empty"),
    ("title: A toy", "title: A toy\ntitle: Again", "line 3: not readable YAML: duplicate key title (lines 2 and 3)"),
    ('["Toy *"]', "[]", "device_names: give at least one"),
    ("2e12, source: its box", "2e12", "peak_flops_per_s.bf16: a figure needs a source; give the document and its"),
    ("2e12", "0", "peak_flops_per_s.bf16.value: must be greater than 0; got 0"),
    ("2e12", ".inf", "peak_flops_per_s.bf16.value: must be a finite number; got inf"),
    ("2e12", "yes", "peak_flops_per_s.bf16.value: must be a number, not true or false"),
    ("value: 2e12", "valu: 2e12",
     "peak_flops_per_s.bf16.valu: unknown key; did you mean 'value'? allowed: value, source, why (and 1 more)"),
    ("{value: 2e12, source: its box}", "2e12",
     "peak_flops_per_s.bf16: must be a mapping of keys; got '2e12'; allowed"),
    ("null, why: its box does not say", "null", "peak_flops_per_s.fp8: value: null needs why (the reason)"),
    ("  bf16: {value: 2e12", "  bf17: {value: 2e12",
     "peak_flops_per_s.bf17: unknown dtype; allowed: bf16, fp16, tf32"),
    ("  fp8:", "  bf16_sparse:", "bf16_sparse: peaks are dense; halve a rate with 2:4 sparsity and say so in its"),
    ("title: A toy", "title: A toy\nwith_sparsity: true", "with_sparsity: peaks are dense; halve a rate"),
    ("value: 1.5e12", "value: 2.5e12", "achievable_matmul_flops_per_s.bf16: 2.5e+12 is above the peak 2e+12"),
    ("value: 1e9, source", "value: null, why", "memory_bytes.value: must be a number; got null"),
    ("  name: string\n", "", "link.name: this key is required"),
    ("  name: string", "  nam: x\n  name: string",
     "link.nam: unknown key; did you mean 'name'? allowed: name, bandwidth_bytes_per_s"),
    (", date: 2026-01-31", "", "price_per_hour_usd: a price needs a date (YYYY-MM-DD)"),
    ("2026-01-31", "2026-13-31", "not readable YAML: month must be in 1..12"),
    ("price_per_hour_usd: {value", "price_per_day_usd: {value",
     "price_per_day_usd: unknown key; did you mean 'price_per_hour_usd'? allowed: "),
    (OWN, "", "must be a mapping of keys (name, peak_flops_per_s, ...); got null"),
    ("title: A toy", "title: !!python/name:os.system", "line 2: not readable YAML: could not determine a constructor"),
    (OWN, "#" * 2**19, "more than 256 KiB; give a device profile"),
    ("title: A toy", f"title: 0x{'f' * 9000}", "title: must be text; got a number of thousands of digits"),
    (OWN, "name: \0", "not readable YAML: unacceptable character #x0000"),
    (OWN, "a: &x {b: *x}", "more than 10000 values (an alias that repeats, or a cycle)"),
    (OWN, BOMB, "more than 10000 values (an alias that repeats, or a cycle)"),
    (OWN, MERGES, "line 5: not readable YAML: merges more than 10000 keys (an alias that repeats)"),
    (OWN, "a: &x {<<: *x}", "line 1: not readable YAML: an alias refers to a mapping that contains it (cycle)"),
])  # fmt: skip
def test_a_broken_file_is_reported_in_one_line(tmp_path: Path, old: str, new: str, line: str) -> None:
    assert old in OWN
    path = own(tmp_path, OWN.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load_profile(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: {line}"), message
    assert "\n" not in message


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(InputError, match="not readable YAML") as caught:
        load_profile(str(path))
    assert "\n" not in str(caught.value)


def test_facts_of_a_run_on_a_known_device() -> None:
    assert profile_facts("NVIDIA H100 80GB HBM3", False, "bf16", threads=4) == ProfileFacts(
        profile="h100-sxm",
        peak_flops_per_s=989.4e12,
        dtype="bf16",
        peak_source="H100 whitepaper, H100 SXM5: BF16 989.4 TFLOPS dense (sparse figure 1978.9 / 2)",
        peak_measured=False,
        price_per_hour_usd=4.29,
    )
    assert profile_facts("NVIDIA H100 80GB HBM3", False, "fp32", threads=4).peak_flops_per_s == 66.9e12


def test_facts_of_a_run_on_an_unknown_device() -> None:
    facts = profile_facts("NVIDIA GeForce RTX 4090", False, "bf16", threads=4)
    assert facts == ProfileFacts(
        profile_reason="no device profile for 'NVIDIA GeForce RTX 4090'; there are: " + ", ".join(profile_names())
    )


@pytest.mark.slow
def test_profiles_need_no_torch() -> None:
    code = (
        "import sys; from trainer.devices.calibrate import profile_facts\n"
        "from trainer.devices.profiles import find_profile\n"
        "find_profile('x'); profile_facts('cpu', True, 'fp32', 1); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3]).returncode == 0
