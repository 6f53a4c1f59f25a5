"""Colours of the page and of its pictures: one table with both themes, so that every pair's contrast can be checked."""

from __future__ import annotations

GAIN, LOSS = "#007A58", "#B34700"  # dark enough for small text on white
INK, SOFT, RULE = "#333333", "#555555", "#888888"  # text, secondary text, lines that carry no figure
BAND, GRID, PAPER = "#E4E4E4", "#EEEEEE", "#FFFFFF"  # grounds

# {custom property of the page: (light, dark)}
THEME = {
    "--paper": ("#ffffff", "#14171b"),
    "--ink": ("#1b1f24", "#e6e9ed"),
    "--soft": ("#57606a", "#a3adb8"),
    "--rule": ("#888888", "#7d8792"),
    "--band": ("#e2e4e8", "#353b44"),
    "--grid": ("#eceef1", "#272c33"),
    "--panel": ("#f6f8fa", "#1c2127"),
    "--gain": ("#007a58", "#3fc79a"),
    "--loss": ("#b34700", "#ff9a5c"),
    "--warn": ("#9a3412", "#ffb38a"),
    "--warn-paper": ("#fff4ec", "#33211a"),
    "--link": ("#0550ae", "#79b8ff"),
    "--edge": ("#d0d7de", "#3b434d"),
    "--c0": ("#0072b2", "#4ba3dc"),
    "--c1": ("#d55e00", "#ff8a3d"),
    "--c2": ("#009e73", "#35c997"),
    "--c3": ("#b0578d", "#e08fc0"),
    "--c4": ("#b87900", "#f0b030"),
    "--c5": ("#2f8fc4", "#8ccdf2"),
    "--c6": ("#8c510a", "#c9925a"),
    "--c7": ("#666666", "#a0a0a0"),
    "--c8": ("#a3305a", "#f07a9f"),
    "--c9": ("#6a3d9a", "#b596dd"),
    "--c10": ("#5b8a7c", "#9fd3c4"),
    "--c11": ("#8a8a8a", "#c8c8c8"),
}

# Close to Okabe and Ito's palette, which colour-blind readers can tell apart; each is at least 3:1 on white.
CURVES = tuple(THEME[f"--c{place}"][0].upper() for place in range(8))
# Warm for the input side, cool and grey for the rest.
PARTS = {
    "read": THEME["--c4"][0],
    "tokenize": THEME["--c1"][0],
    "pack": THEME["--c6"][0],
    "transfer": THEME["--c8"][0],
    "fetch": THEME["--c1"][0],
    "h2d": THEME["--c3"][0],
    "forward": THEME["--c5"][0],
    "backward": THEME["--c0"][0],
    "optimizer": THEME["--c2"][0],
    "sync": THEME["--c10"][0],
    "log": THEME["--c7"][0],
    "checkpoint": THEME["--c9"][0],
    "other": THEME["--c11"][0],
}
# Colours of a drawing, and the custom property that replaces each in the page's SVG.
THEMED = {
    **{light: name for name, (light, _) in THEME.items() if name.startswith("--c")},
    PAPER.lower(): "--paper",
    "#000000": "--ink",
    INK: "--ink",
    SOFT: "--soft",
    RULE: "--rule",
    BAND.lower(): "--band",
    GRID.lower(): "--grid",
    GAIN.lower(): "--gain",
    LOSS.lower(): "--loss",
}


def style() -> str:
    """Return the style sheet's custom properties: light, dark where the system prefers it, and as the button says."""
    light, dark = (
        f"color-scheme: {scheme}; " + " ".join(f"{name}: {pair[place]};" for name, pair in THEME.items())
        for place, scheme in enumerate(("light", "dark"))
    )
    return (
        f":root {{ {light} }}\n"
        f'@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {dark} }} }}\n'
        f':root[data-theme="dark"] {{ {dark} }}\n'
    )


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours as WCAG 2 defines it: 1 for equal colours, 21 for black on white."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
