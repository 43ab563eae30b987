"""The pictures of a report as inline SVG: error by layer, types by layer, bytes, error sizes.

Each function takes figures and gives a text; colours come from the page's style as classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from llamapy.tasks.tensor_error import DECADES, PER_DECADE

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 860, 84, 150, 14, 40

Point = tuple[float, float, str]  # x, y, what it is


def _frame(height: int, body: str, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">{body}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def error_by_layer(series: Mapping[str, Sequence[Point]], n_layer: int) -> str:
    """Lines of relative error (a log scale) over layers, one a role; y of 0 is left out."""
    points = [y for several in series.values() for _, y, _ in several if 0 < y < math.inf]
    if not points:
        return "<p>No tensor has changed.</p>"
    low, high = (
        math.floor(math.log10(min(points)) * 2) / 2,
        math.ceil(math.log10(max(points)) * 2) / 2,
    )
    high = max(high, low + 0.5)
    height, right, bottom = 330, WIDTH - RIGHT, 330 - BOTTOM

    def at_x(x: float) -> float:
        return LEFT + (x + 0.5) / max(n_layer, 1) * (right - LEFT)

    def at_y(y: float) -> float:
        return bottom - (math.log10(y) - low) / (high - low) * (bottom - TOP)

    body = []
    for tick in range(round(low * 2), round(high * 2) + 1):
        y = at_y(10 ** (tick / 2))
        body += [
            _line(LEFT, y, right, y),
            _text(LEFT - 8, y + 4, _percent(10 ** (tick / 2)), "end"),
        ]
    for layer in range(0, n_layer, max(1, -(-n_layer // 16))):
        body.append(_text(at_x(layer), bottom + 18, str(layer)))
    body.append(_text((LEFT + right) / 2, height - 4, "layer", kind="axis"))
    ends = []
    for number, (role, several) in enumerate(series.items()):
        shown = [(at_x(x), at_y(y), text) for x, y, text in several if 0 < y < math.inf]
        if not shown:
            continue
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in shown)
        body.append(f'<polyline class="line c{number % 10}" points="{path}"/>')
        body += [
            f'<circle class="dot c{number % 10}" cx="{x:.1f}" cy="{y:.1f}" r="2.6">'
            f"<title>{escape(text)}</title></circle>"
            for x, y, text in shown
        ]
        ends.append((shown[-1][1], role, number))
    body += _labels(ends, right + 10, TOP, bottom)
    return _frame(height, "".join(body), "relative error by layer")


def _labels(ends: list[tuple[float, str, int]], x: float, top: float, bottom: float) -> list[str]:
    """Names beside the ends of lines, moved apart where they would touch."""
    gap = 15.0
    placed: list[tuple[float, str, int]] = []
    for y, role, number in sorted(ends):
        placed.append((max(y, placed[-1][0] + gap if placed else top), role, number))
    over = max(0.0, placed[-1][0] - bottom) if placed else 0.0
    return [
        f'<g class="c{number % 10}"><rect class="key" x="{x}" y="{y - over - 6:.1f}" width="9" '
        f'height="9" rx="2"/>{_text(x + 14, y - over + 3, role, "start")}</g>'
        for y, role, number in placed
    ]


def type_grid(cells: Mapping[tuple[str, int], tuple[str, float]], n_layer: int) -> str:
    """A square for each role and layer, {(role, layer): (type, bits)}, shaded by bits a weight."""
    roles = list(dict.fromkeys(role for role, _ in cells))
    if not roles:
        return ""
    left, size = 150, min(26.0, (WIDTH - 160) / max(n_layer, 1))
    row = 20
    height = TOP + row * len(roles) + BOTTOM
    body = []
    for i, role in enumerate(roles):
        y = TOP + row * i
        body.append(_text(left - 8, y + 14, role, "end"))
        for layer in range(n_layer):
            if (role, layer) not in cells:
                continue
            kind, bits = cells[role, layer]
            shade = min(1.0, max(0.08, (bits - 1.0) / 7.5))
            body.append(
                f'<rect class="cell" style="fill-opacity:{shade:.2f}" '
                f'x="{left + size * layer:.1f}" y="{y}" width="{size - 1.5:.1f}" height="18">'
                f"<title>{escape(f'layer {layer} {role}: {kind}')}</title></rect>"
            )
            if size >= 22:
                short = kind.replace("_K", "K").replace("iq", "i").removeprefix("q")
                x = left + size * (layer + 0.5) - 1
                body.append(
                    _text(x, y + 12.5, short, kind="tiny light" if shade > 0.65 else "tiny")
                )
    for layer in range(0, n_layer, max(1, -(-n_layer // 16))):
        body.append(_text(left + size * (layer + 0.5), TOP + row * len(roles) + 16, str(layer)))
    return _frame(height, "".join(body), "types by layer")


def bars(rows: Sequence[tuple[str, float, str]], label: str) -> str:
    """Horizontal bars: (name, amount, text at its end)."""
    most = max((amount for _, amount, _ in rows), default=0.0) or 1.0
    left, row, right = 150, 22, WIDTH - 210
    body = []
    for i, (name, amount, text) in enumerate(rows):
        y = TOP + row * i
        width = amount / most * (right - left)
        body += [
            _text(left - 8, y + 13, name, "end"),
            f'<rect class="bar" x="{left}" y="{y + 2}" width="{max(width, 1):.1f}" height="15"/>',
            _text(left + width + 8, y + 14, text, "start"),
        ]
    return _frame(TOP + row * len(rows) + 8, "".join(body), label)


def histograms(series: Mapping[str, Sequence[int]]) -> str:
    """How large errors are against the root mean square of their row: a curve a type."""
    height, right, bottom = 280, WIDTH - RIGHT, 280 - BOTTOM
    shares = {name: [c / max(sum(counts), 1) for c in counts] for name, counts in series.items()}
    most = max((max(s[1:-1]) for s in shares.values()), default=0.0)
    if not most:
        return "<p>No value has changed.</p>"
    seen = [i for s in shares.values() for i, v in enumerate(s[1:-1]) if v > most / 200]
    first = min(seen) // PER_DECADE * PER_DECADE
    end = -(-(max(seen) + 1) // PER_DECADE) * PER_DECADE

    def at_x(i: float) -> float:
        return LEFT + (i - first) / (end - first) * (right - LEFT)

    body = []
    for i in range(first, end + 1, PER_DECADE):
        x = at_x(i)
        body += [
            _line(x, TOP, x, bottom),
            _text(x, bottom + 18, _power(DECADES[0] + i // PER_DECADE)),
        ]
    body.append(_line(LEFT, bottom, right, bottom, "base"))
    body.append(
        _text((LEFT + right) / 2, height - 4, "error by the row's root mean square", kind="axis")
    )
    ends = []
    for number, (name, share) in enumerate(shares.items()):
        inner = share[1:-1]
        points = [
            (at_x(i + 0.5), bottom - v / most * (bottom - TOP - 6)) for i, v in enumerate(inner)
        ]
        shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in points[first:end])
        body.append(
            f'<polyline class="line c{number % 10}" points="{shown}">'
            f"<title>{escape(name)}</title></polyline>"
        )
        ends.append((TOP + 16.0 * number + 10, name, number))
    body += _labels(ends, right + 10, TOP, bottom)
    return _frame(height, "".join(body), "sizes of errors")


def sparkline(counts: Sequence[int]) -> str:
    """A small histogram for a line of the table."""
    inner = list(counts)[1:-1]
    most = max(inner, default=0)
    if not most:
        return ""
    bars_ = "".join(
        f'<rect x="{i}" y="{14 - 14 * c / most:.1f}" width="1" height="{14 * c / most:.1f}"/>'
        for i, c in enumerate(inner)
        if c
    )
    return (
        f'<svg class="spark" viewBox="0 0 {len(inner)} 14" preserveAspectRatio="none">{bars_}</svg>'
    )


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def _power(exponent: int) -> str:
    return {0: "1", -1: "0.1", -2: "0.01", -3: "0.001", 1: "10"}.get(exponent, f"1e{exponent}")
