"""The colours of a report, by role: one set for light pages, one for dark ones.

A figure is drawn in the light colours; in the page each of them becomes the style sheet's variable of its role, so that
one drawing serves both. Text has a contrast of 4.5 or more against what it stands on, marks have 3 or more (WCAG 2.2,
1.4.3 and 1.4.11). Neighbours in ``SERIES`` differ in lightness, which survives every form of colour blindness.
"""

from __future__ import annotations

LIGHT = {
    "page": "#f4f6f8",
    "card": "#fffffe",
    "ink": "#1a2029",
    "muted": "#566072",
    "line": "#c7ced8",
    "accent": "#0a4d8d",
    "bad": "#b0122b",
    "s1": "#0a4d8c",
    "s2": "#cf6a1a",
    "s3": "#00614a",
    "s4": "#c45ba0",
    "s5": "#6b4a12",
    "s6": "#2f8fc4",
    "s7": "#8a1c4a",
    "s8": "#7a828e",
    "idle": "#eceff3",
}
"""Every value is used once, so that a colour says its role."""

DARK = {
    "page": "#10141a",
    "card": "#191f28",
    "ink": "#e6eaf0",
    "muted": "#a3adbb",
    "line": "#3b4554",
    "accent": "#8ec5ff",
    "bad": "#ff8a94",
    "s1": "#8ec5ff",
    "s2": "#d9822b",
    "s3": "#8fe3c4",
    "s4": "#c562a8",
    "s5": "#ecd28b",
    "s6": "#4d8fd6",
    "s7": "#ffb3c1",
    "s8": "#8f98a5",
    "idle": "#252d39",
}

INK, MUTED, LINE, CARD, BAD, IDLE = (LIGHT[role] for role in ("ink", "muted", "line", "card", "bad", "idle"))

SERIES = tuple(LIGHT[f"s{i}"] for i in range(1, 9))
"""For the kinds of things that a figure tells apart, in this order; the last, a grey, is for the rest."""

REST = SERIES[-1]


def variables(palette: dict[str, str]) -> str:
    """The palette as custom properties of a style sheet."""
    return " ".join(f"--{role}: {colour};" for role, colour in palette.items())


def with_roles(svg: str) -> str:
    """An SVG drawn in the light colours, with each replaced by the variable of its role."""
    for role, colour in LIGHT.items():
        svg = svg.replace(colour, f"var(--{role})")
    return svg


def contrast(one: str, other: str) -> float:
    """The contrast of two ``#rrggbb`` colours, 1 to 21 (WCAG 2.2, "contrast ratio" and "relative luminance")."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    channels = (int(colour[at : at + 2], 16) / 255.0 for at in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
