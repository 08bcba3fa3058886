"""Small plots as SVG: bars beside each other, and lines over logarithmic axes. Read well on light and on dark pages."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

COLOURS = ("#3b76c4", "#d9822b", "#4f9d69", "#a05195", "#888888")
STYLE = "<style>text{font:12px sans-serif;fill:#888}.grid{stroke:#888;stroke-opacity:.25;fill:none}</style>"


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


def lines(title: str, charts: list[tuple[str, str, list[tuple[float, float]]]]) -> str:
    """Charts in two columns: the title of each, the name of its x axis, and the points of its line."""
    parts = [text(0, 14, title)]
    for index, each in enumerate(charts):
        parts.append(f'<g transform="translate({index % 2 * 330},{30 + index // 2 * 190})">')
        parts += [*chart(*each), "</g>"]
    return document(660, 30 + (len(charts) + 1) // 2 * 190, parts)


def chart(label: str, axis: str, points: list[tuple[float, float]]) -> list[str]:
    """One chart of 300 by 170; both axes are logarithmic, and y spans at least two decades."""
    xs, ys = ([math.log10(value) for value in values] for values in zip(*points, strict=True))
    middle, half = (min(ys) + max(ys)) / 2, max(1.0, (max(ys) - min(ys)) / 2 * 1.1)
    across = [10 + 270 * (x - min(xs)) / (max(xs) - min(xs)) for x in xs]
    down = [85 - 65 * (y - middle) / half for y in ys]
    at = list(zip(across, down, strict=True))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    (first, first_cost), (last, last_cost) = points[0], points[-1]
    return [
        text(0, 12, label),
        '<rect class="grid" x="0" y="20" width="300" height="130"/>',
        text(10, 166, f"{first:,.0f}"),
        text(110, 166, axis),
        text(240, 166, f"{last:,.0f}"),
        f'<polyline points="{path}" fill="none" stroke="{COLOURS[0]}" stroke-width="2"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS[0]}"/>' for x, y in at),
        text(at[0][0], at[0][1] - 8, f"{first_cost:.3g}"),
        text(at[-1][0] - 18, at[-1][1] - 8, f"{last_cost:.3g}"),
    ]


def text(x: float, y: float, what: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(what)}</text>'


def document(width: int, height: int, parts: list[str]) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{STYLE}\n' + "\n".join(parts) + "\n</svg>\n"
