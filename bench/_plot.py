"""Small plots as SVG: bars beside each other, and lines over logarithmic axes. Read well on light and on dark pages."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

COLOURS = ("#3b76c4", "#d9822b", "#4f9d69", "#a05195", "#888888")
STYLE = "<style>text{font:12px sans-serif;fill:#888}.grid{stroke:#888;stroke-opacity:.25;fill:none}</style>"

Series = list[tuple[str, list[tuple[float, float]]]]


def bars(title: str, groups: list[tuple[str, list[tuple[str, float]]]]) -> str:
    """Horizontal bars: (label, [(name, value), …]) for each group."""
    names = list(dict.fromkeys(name for _, values in groups for name, _ in values))
    most = max(value for _, values in groups for _, value in values)
    parts, y = [text(0, 14, title)], 30
    for label, values in groups:
        y += 14
        parts.append(text(0, y, label))
        for name, value in values:
            y += 4
            width = 420 * value / most
            colour = COLOURS[names.index(name) % len(COLOURS)]
            parts.append(f'<rect x="0" y="{y}" width="{width:.1f}" height="14" fill="{colour}"/>')
            parts.append(text(width + 6, y + 11, f"{value:.3g}  {name}"))
            y += 14
        y += 8
    return document(600, y, parts)


def lines(title: str, charts: list[tuple[str, str, Series]]) -> str:
    """Two charts in a row, each with its title, the name of its x axis, and lines of (x, y)."""
    parts = [text(0, 14, title)]
    for index, (label, axis, series) in enumerate(charts):
        parts.append(f'<g transform="translate({index % 2 * 330},{30 + index // 2 * 210})">')
        parts += [*chart(label, axis, series), "</g>"]
    return document(660, 30 + (len(charts) + 1) // 2 * 210, parts)


def chart(label: str, axis: str, series: Series) -> list[str]:
    """One chart of 310 by 190; both axes are logarithmic, and y spans at least two decades."""
    points = [point for _, line in series for point in line]
    left, right = (math.log10(pick(x for x, _ in points)) for pick in (min, max))
    bottom, top = (math.log10(pick(y for _, y in points)) for pick in (min, max))
    middle, half = (bottom + top) / 2, max(1.0, (top - bottom) / 2 * 1.1)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - left) / (right - left or 1)
        return 10 + 270 * across, 85 - 65 * (math.log10(y) - middle) / half

    parts = ['<rect class="grid" x="0" y="20" width="300" height="130"/>', text(0, 12, label)]
    parts += [text(10, 166, f"{10**left:,.0f}"), text(240, 166, f"{10**right:,.0f}"), text(110, 166, axis)]
    for index, (name, line) in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        at = [place(x, y) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in at]
        parts.append(text(at[0][0], at[0][1] - 8, f"{line[0][1]:.3g}"))
        parts.append(text(at[-1][0] - 18, at[-1][1] - 8, f"{line[-1][1]:.3g} {name}"))
    return parts


def text(x: float, y: float, what: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(what)}</text>'


def document(width: int, height: int, parts: list[str]) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{STYLE}\n' + "\n".join(parts) + "\n</svg>\n"
