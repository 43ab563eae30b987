"""A report as one HTML page that stands alone: figures, charts, and a table that sorts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from html import escape

import numpy as np

from llamapy.quants import codec
from llamapy.tasks import mixes, report_charts
from llamapy.tasks.budget import Choice, Measured
from llamapy.tasks.compare import Compared
from llamapy.tasks.report import Report

_BLOCK = re.compile(r"^blk\.\d+\.")

_STYLE = """
:root { --ink:#1b1f24; --soft:#5b6670; --grid:#e3e7ea; --paper:#fff; --fill:#2d6cb5;
  --card:#f6f8fa }
@media (prefers-color-scheme: dark) { :root { --ink:#e6e9ec; --soft:#9aa5af; --grid:#30363d;
  --paper:#14181c; --fill:#5c9ce6; --card:#1c2127 } }
* { box-sizing:border-box }
body { font:15px/1.5 system-ui,sans-serif; color:var(--ink); background:var(--paper);
  max-width:1080px; margin:32px auto; padding:0 20px }
h1 { font-size:24px; margin:0 0 4px } h2 { font-size:17px; margin:36px 0 6px }
p.files, p.why { color:var(--soft); margin:0 0 10px; overflow-wrap:anywhere }
.cards { display:flex; flex-wrap:wrap; gap:12px; margin:18px 0 }
.cards div { background:var(--card); border-radius:8px; padding:10px 16px; min-width:130px }
.cards b { display:block; font-size:21px; font-weight:600 }
.cards span { color:var(--soft); font-size:13px }
svg { width:100%; height:auto; display:block; font-size:12px }
svg text { fill:var(--soft) } svg text.axis { font-style:italic } svg text.tiny { font-size:8px;
  fill:var(--ink) } svg text.light { fill:#fff }
.grid { stroke:var(--grid) } .base { stroke:var(--soft) }
.line { fill:none; stroke:currentColor; stroke-width:1.8 } .dot,.key { fill:currentColor }
.bar,.cell,.spark rect { fill:var(--fill) } .spark { width:90px; height:16px }
.c0{color:#3366aa}.c1{color:#dd7722}.c2{color:#2a9d66}.c3{color:#c23b4b}.c4{color:#8660b8}
.c5{color:#8a6242}.c6{color:#d768a8}.c7{color:#7a8288}.c8{color:#a8a52a}.c9{color:#27a5b8}
.scroll { overflow-x:auto } table { border-collapse:collapse; font-size:13px; width:100% }
th,td { padding:4px 10px; text-align:right; border-bottom:1px solid var(--grid);
  white-space:nowrap }
th:first-child,td:first-child,td.t,th.t { text-align:left } th { cursor:pointer; color:var(--soft);
  position:sticky; top:0; background:var(--paper) } td b { color:var(--fill) }
"""

_SORT = """
for (const head of document.querySelectorAll('th')) head.onclick = () => {
  const body = head.closest('table').tBodies[0], i = head.cellIndex;
  const way = head.dataset.way = head.dataset.way === '1' ? '-1' : '1';
  const key = row => row.cells[i].dataset.v ?? row.cells[i].textContent;
  [...body.rows].sort((a, b) => { const x = key(a), y = key(b);
    return way * (isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y) })
    .forEach(row => body.append(row)) }
"""


def page(report: Report) -> str:
    """The whole page."""
    blocks = [one for one in report.tensors if mixes.layer_of(one.name) >= 0]
    n_layer = 1 + max((mixes.layer_of(one.name) for one in blocks), default=-1)
    parts = [
        f"<h1>{escape(report.title)}</h1>",
        f'<p class="files">{escape(report.before)}<br>{escape(report.after)}</p>',
        _cards(report),
        *(f'<p class="why">{escape(note)}</p>' for note in report.notes),
        _section(
            "Error by layer",
            "Root mean square of the errors of a tensor by that of its values; lower is better."
            " Tensors that were only copied have none.",
            report_charts.error_by_layer(_series(blocks, report.weighted), n_layer),
        ),
        _section("Types by layer", "The darker, the more bits.", _grid(blocks, n_layer)),
        _section("Where the bytes are", "Size of all tensors of a type.", _bytes(report.tensors)),
        _section(
            "How large errors are",
            "Share of the values whose error has this size, by type.",
            report_charts.histograms(_histograms(report.tensors)),
        ),
        _trades(report.trades),
        _section("All tensors", "A click on a heading sorts.", _table(report)),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(report.title)}</title><style>{_STYLE}</style></head>"
        f"<body>{body}<script>{_SORT}</script></body></html>\n"
    )


def _section(title: str, why: str, content: str) -> str:
    if not content:
        return ""
    return f'<h2>{escape(title)}</h2><p class="why">{escape(why)}</p>{content}'


def _cards(report: Report) -> str:
    n = sum(one.error.n for one in report.tensors)
    n_bytes = sum(one.n_bytes for one in report.tensors)
    changed = [one for one in report.tensors if one.error.errors]
    total = report.total
    worst = max(changed, key=lambda one: one.error.relative, default=None)
    cards = [
        (f"{8 * n_bytes / n if n else 0:.3f}", "bits per weight"),
        (size(n_bytes), f"in {len(report.tensors)} tensors"),
        (f"{100 * total.relative:.3g} %", "relative error of all together"),
        (f"{total.cosine:.6f}", "cosine of all together"),
        (f"{len(changed)}", "tensors with errors"),
    ]
    if worst is not None:
        cards.append((f"{100 * worst.error.relative:.3g} %", f"worst: {worst.name}"))
    inner = "".join(f"<div><b>{escape(a)}</b><span>{escape(b)}</span></div>" for a, b in cards)
    return f'<div class="cards">{inner}</div>'


def size(n_bytes: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n_bytes < 1024 or unit == "GiB":
            break
        n_bytes /= 1024
    return f"{n_bytes:,.1f} {unit}" if unit != "B" else f"{n_bytes:.0f} B"


def role(name: str) -> str:
    """A tensor's name without its block and its ending."""
    return _BLOCK.sub("", name).removesuffix(".weight")


def _series(blocks: Sequence[Compared], weighted: bool) -> dict[str, list[report_charts.Point]]:
    found: dict[str, list[report_charts.Point]] = defaultdict(list)
    for one in sorted(blocks, key=lambda one: mixes.layer_of(one.name)):
        y = one.error.weighted_relative if weighted else one.error.relative
        if y:
            text = f"{one.name} as {one.after}: {100 * y:.3g} %"
            found[role(one.name)].append((mixes.layer_of(one.name), y, text))
    return dict(sorted(found.items()))


def _grid(blocks: Sequence[Compared], n_layer: int) -> str:
    cells = {
        (role(one.name), mixes.layer_of(one.name)): (one.after, codec.get(one.after).bpw())
        for one in sorted(blocks, key=lambda one: role(one.name))
        if len(one.shape) > 1
    }
    return report_charts.type_grid(cells, n_layer)


def _bytes(tensors: Sequence[Compared]) -> str:
    sums: dict[str, int] = defaultdict(int)
    for one in tensors:
        sums[one.after] += one.n_bytes
    whole = sum(sums.values()) or 1
    rows = [
        (kind, float(n), f"{size(n)}, {100 * n / whole:.1f} %, {codec.get(kind).bpw():.4g} bits")
        for kind, n in sorted(sums.items(), key=lambda item: -item[1])
    ]
    return report_charts.bars(rows, "bytes by type")


def _histograms(tensors: Sequence[Compared]) -> dict[str, list[int]]:
    sums: dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
    for one in tensors:
        if one.error.errors:
            sums[one.after] = sums.get(one.after, np.int64(0)) + one.error.histogram
    ordered = sorted(sums, key=lambda kind: -codec.get(kind).bpw())
    return {kind: sums[kind].tolist() for kind in ordered}


def _trades(trades: Sequence[tuple[Measured, Choice]]) -> str:
    """What each tensor could have been, and what it became."""
    if not trades:
        return ""
    kinds = sorted(
        {c.kind for one, _ in trades for c in one.choices}, key=lambda k: codec.get(k).bpw()
    )
    head = "".join(f"<th>{escape(kind)}</th>" for kind in kinds)
    rows = []
    for one, choice in trades:
        errors = {c.kind: c.error for c in one.choices}
        cells = []
        for kind in kinds:
            error = errors.get(kind)
            text = "" if error is None else f"{100 * error:.3g} %"
            chosen = f"<b>{text}</b>" if kind == choice.kind else text
            cells.append(f'<td data-v="{error if error is not None else 9e9}">{chosen}</td>')
        rows.append(f"<tr><td>{escape(one.planned.name)}</td>{''.join(cells)}</tr>")
    table = (
        f'<div class="scroll"><table><thead><tr><th>tensor</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
    return _section(
        "What was weighed",
        "The relative error that each type would give; the chosen one is bold.",
        table,
    )


_COLUMNS = (
    "tensor",
    "shape",
    "from",
    "to",
    "size",
    "RMSE",
    "relative",
    "largest",
    "cosine",
    "errors",
)


def _table(report: Report) -> str:
    rows = []
    for one in report.tensors:
        e = one.error
        relative = e.weighted_relative if report.weighted else e.relative
        cells = [
            f"<td>{escape(one.name)}</td>",
            f'<td class="t">{escape(" x ".join(map(str, one.shape)))}</td>',
            f'<td class="t">{escape(one.before)}</td><td class="t">{escape(one.after)}</td>',
            f'<td data-v="{one.n_bytes}">{size(one.n_bytes)}</td>',
            *(
                f'<td data-v="{v}">{text}</td>'
                for v, text in (
                    (e.rmse, f"{e.rmse:.3g}"),
                    (relative, f"{100 * relative:.3g} %"),
                    (e.largest, f"{e.largest:.3g}"),
                    (e.cosine, f"{e.cosine:.6f}"),
                )
            ),
            f"<td>{report_charts.sparkline(e.histogram.tolist()) if e.errors else ''}</td>",
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    left = {"tensor", "shape", "from", "to"}
    head = "".join(f"<th{' class=t' if c in left else ''}>{escape(c)}</th>" for c in _COLUMNS)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
