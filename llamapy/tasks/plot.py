"""A plot of quality against size: points with names, round ticks; as SVG, or a page that holds it.

A plot is a list of shapes (lines, dots, texts); plot_png.py paints the same list. Knows nothing of
models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 48, 58
LETTER = 6.6  # pixels of a letter of a label, about
RADIUS = 4.5
GRID, BAR, BLUE = "#e4e4e4", "#7a9cc6", "#1f5fa8"


@dataclass(frozen=True)
class Point:
    """A named point; `error` is half the height of its bar."""

    name: str
    x: float
    y: float
    error: float = 0.0


def ticks(low: float, high: float, n: int = 6) -> list[float]:
    """About n round numbers (1, 2, 5 times a power of ten) that span low to high."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / max(n - 1, 1)
    power = 10 ** floor(log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    return [round(i * step, 12) for i in range(floor(low / step), ceil(high / step) + 1)]


@dataclass(frozen=True)
class Line:
    x1: float
    y1: float
    x2: float
    y2: float
    color: str


@dataclass(frozen=True)
class Dot:
    x: float
    y: float


@dataclass(frozen=True)
class Text:
    """Text on the base line y. anchor: where x is (start, middle, end); turned: upwards."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    size: int = 12
    turned: bool = False


Shape = Line | Dot | Text


def shapes(title: str, x_label: str, y_label: str, points: Sequence[Point]) -> list[Shape]:
    """What a plot of WIDTH x HEIGHT pixels is drawn of, from the back to the front."""
    xs = ticks(min(p.x for p in points), max(p.x for p in points))
    ys = ticks(min(p.y - p.error for p in points), max(p.y + p.error for p in points))
    x_at = _scale(xs, LEFT, WIDTH - RIGHT)
    y_at = _scale(ys, HEIGHT - BOTTOM, TOP)
    found: list[Shape] = [
        Text(WIDTH / 2, 26, title, anchor="middle", size=15),
        Text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, x_label, anchor="middle"),
        Text(18, HEIGHT / 2, y_label, anchor="middle", turned=True),
    ]
    for x in xs:
        found.append(Line(x_at(x), TOP, x_at(x), HEIGHT - BOTTOM, GRID))
        found.append(Text(x_at(x), HEIGHT - BOTTOM + 18, f"{x:g}", anchor="middle"))
    for y in ys:
        found.append(Line(LEFT, y_at(y), WIDTH - RIGHT, y_at(y), GRID))
        found.append(Text(LEFT - 8, y_at(y) + 4, f"{y:g}", anchor="end"))
    taken = [(x_at(p.x) - 5, y_at(p.y) + 4, 10.0) for p in points]  # left, base line, width
    for p in points:
        x, y = x_at(p.x), y_at(p.y)
        if p.error:
            found.append(Line(x, y_at(p.y - p.error), x, y_at(p.y + p.error), BAR))
        found.extend(_label(p.name, x, y, taken))
        found.append(Dot(x, y))
    return found


def svg(drawn: Sequence[Shape]) -> str:
    """The picture as text."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">'
    )
    ground = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    return "\n".join([head, ground, *map(_svg, drawn), "</svg>\n"])


def html(title: str, picture: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A page with the picture and a table."""
    head = "".join(f"<th>{escape(c)}</th>" for c in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title>\n<style>body{{font-family:sans-serif;margin:2em}}"
        "td,th{padding:.2em .9em;text-align:right}td:first-child,th:first-child{text-align:left}"
        f"</style></head>\n<body>\n{picture}\n<table>\n<tr>{head}</tr>\n{body}</table>\n"
        "</body></html>\n"
    )


def _scale(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    low, high = values[0], values[-1]
    return lambda v: start + (v - low) / (high - low) * (end - start)


def _label(name: str, x: float, y: float, taken: list[tuple[float, float, float]]) -> list[Shape]:
    """The point's name beside it, on the side and at the height where it covers nothing; a line
    leads to a name that is not right beside."""
    width = LETTER * len(name)
    for shift in (4, -10, 18, -24, 32, -38, 46):
        for right in (True, False):
            start, at = x + 9 if right else x - 9 - width, y + shift
            inside = start > LEFT and start + width < WIDTH - RIGHT
            inside = inside and TOP - 10 < at < HEIGHT - BOTTOM + 8
            apart = (abs(at - b) > 12 or start + width < a or a + w < start for a, b, w in taken)
            if inside and all(apart):
                taken.append((start, at, width))
                near = x + 8 if right else x - 8
                text = Text(near + (1 if right else -1), at, name, "start" if right else "end")
                return [text] if shift == 4 else [Line(x, y, near, at - 4, BAR), text]
    return [Text(x + 9, y + 4, name)]


def _svg(shape: Shape) -> str:
    if isinstance(shape, Line):
        ends = f'x1="{shape.x1:.1f}" y1="{shape.y1:.1f}" x2="{shape.x2:.1f}" y2="{shape.y2:.1f}"'
        return f'<line {ends} stroke="{shape.color}"/>'
    if isinstance(shape, Dot):
        return f'<circle cx="{shape.x:.1f}" cy="{shape.y:.1f}" r="{RADIUS}" fill="{BLUE}"/>'
    turn = f' transform="rotate(-90 {shape.x:.1f} {shape.y:.1f})"' if shape.turned else ""
    return (
        f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" text-anchor="{shape.anchor}"'
        f' font-size="{shape.size}"{turn}>{escape(shape.text)}</text>'
    )
