"""mul_mat with many columns (prefill) on integers: panels of weight rows are packed once and meet
every column.

A chunk is up to six panels: while they stay in first- or second-level cache all columns stream
past, four at a time.
The form of the panels is phantom b: "x8" (activations rounded to 8 bits, outliers apart) or "x16"
(to 16 bits: where exact results are asked for, and for weights of whole bytes if the processor
cannot multiply such).
"""

from __future__ import annotations

from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu import values
from llamapy.backend.cpu.panels import bytes as bytes_form
from llamapy.backend.cpu.panels import pairs as pairs_form
from llamapy.backend.cpu.panels.groups import ROWS, SCRATCH, ask_for, store_tile
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import next_chunk
from llamapy.graph.tensor import Tensor
from llamapy.native import ByType, compiled, levels
from llamapy.quants import codec

OPS = ("mul_mat",)
PRIORITY = 10
FEW = 8  # up to so many columns, at most, the weights are read row by row
MOST_PANELS = 6  # a chunk
PANEL_CACHE = 256 * 1024  # bytes of packed panels that stay in cache

FORMS = {"x8": bytes_form, "x16": pairs_form}

pack = ByType("pack", lambda form: FORMS[form].pack, 10)
four_columns = ByType("four_columns", lambda form: FORMS[form].four_columns, 9)
size = ByType("size", lambda form: FORMS[form].BYTES, 0)
together = ByType("together", lambda form: FORMS[form].COLUMNS, 0)


@compiled
def panels_times_columns(
    w, form, node, rows, n, then, x, out, tile, scratch, panel, scales, minimums, tables
):
    """`n` rows from `rows` on, packed as panels, times all columns of x; out: address of the first
    result; then: the rows that probably come next."""
    k, m, x_size = rec.ne(node, 1, 0), rec.ne(node, 2, 1), rec.param(node, 0)
    panel_size, scale_size = size(form) * ROWS * k, 64 * (k // values.group(w) + 1)
    stride, row_stride = rec.nb(node, 0, 1), rec.nb(node, 1, 1)
    n_panels = (n + ROWS - 1) // ROWS
    ask_for(w, rows, row_stride, k)
    for p in range(n_panels):
        live, first = min(ROWS, n - p * ROWS), rows + p * ROWS * row_stride
        ask_for(w, first + ROWS * row_stride if p + 1 < n_panels else then, row_stride, k)
        at, beside = panel + p * panel_size, p * scale_size
        pack(
            form,
            w,
            first,
            row_stride,
            live,
            k,
            at,
            scales + beside,
            minimums + beside,
            scratch,
            tables,
        )
    for c in range(0, m, 4):
        own, live = x + c // together(form) * x_size, min(4, m - c)
        for p in range(n_panels):
            at, s, low = panel + p * panel_size, scales + p * scale_size, minimums + p * scale_size
            four_columns(form, w, at, s, low, own, x_size, live, k, tile)
            y = out + c * stride + 4 * ROWS * p
            store_tile(tile, y, stride, live, min(ROWS, n - p * ROWS))


@kernel
def mul_mat_panel(node, ith, nth, sync, w, form):
    """Parameters: bytes from one row of activations (or quartet) to the next, tables of the
    weights' type, rows a chunk."""
    k, n = rec.ne(node, 1, 0), rec.ne(node, 1, 1)
    per_chunk = rec.param(node, 2)
    tile = rec.private(node, ith)
    scratch = tile + 256
    scales = scratch + SCRATCH
    beside = 64 * (k // values.group(w) + 1) * (per_chunk // ROWS)
    minimums = scales + beside
    panel = minimums + beside
    per_plane = (n + per_chunk - 1) // per_chunk
    n_chunks = per_plane * rec.ne(node, 2, 2) * rec.ne(node, 2, 3)
    chunk = next_chunk(node, sync)
    while chunk < n_chunks:
        plane, first = chunk // per_plane, chunk % per_plane * per_chunk
        i2, i3 = plane % rec.ne(node, 2, 2), plane // rec.ne(node, 2, 2)
        own2 = i2 * rec.ne(node, 1, 2) // rec.ne(node, 2, 2)
        own3 = i3 * rec.ne(node, 1, 3) // rec.ne(node, 2, 3)
        rows = rec.data(node, 1) + own2 * rec.nb(node, 1, 2) + own3 * rec.nb(node, 1, 3)
        rows += first * rec.nb(node, 1, 1)
        out = rec.data(node, 0) + i2 * rec.nb(node, 0, 2) + i3 * rec.nb(node, 0, 3) + 4 * first
        m, few = rec.ne(node, 2, 1), together(form)
        x = rec.shared(node) + plane * ((m + few - 1) // few) * rec.param(node, 0)
        live, tables = min(per_chunk, n - first), rec.param(node, 1)
        then = rows + nth * per_chunk * rec.nb(node, 1, 1)
        panels_times_columns(
            w,
            form,
            node,
            rows,
            live,
            then,
            x,
            out,
            tile,
            scratch,
            panel,
            scales,
            minimums,
            tables,
        )
        chunk = next_chunk(node, sync)


def few(kind: type[codec.Codec], form: str) -> int:
    """Up to how many columns reading the weights row by row is faster. Measured: rows gain most
    where numbers are bytes as they are, panels where a block becomes numbers at once."""
    if form == "x16" or kind.n_bytes > kind.n_values:
        return FEW
    return 4 if kind.halves else 6


def form_for(kind: type[codec.Codec], machine: Machine) -> str:
    """Which panels: bytes only where activations may be rounded so, and the processor multiplies
    such numbers."""
    multiplied = levels.whole_bytes() or not values.spans_more_than_seven_bits(kind)
    return "x8" if machine.activation_bits == 8 and multiplied else "x16"


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    w, x = node.src
    if w.kind.unpack is None or w.kind.n_values > 256 or not w.contiguous_rows:
        return None
    k, form = x.ne[0], form_for(w.kind, machine)
    if x.ne[1] <= few(w.kind, form) or x.kind.name != "f32":
        return None
    width = FORMS[form].BYTES
    step, x_size = FORMS[form].rounded(x)
    panels = min(
        MOST_PANELS,
        max(1, PANEL_CACHE // (width * ROWS * k)),
        max(1, w.ne[1] // ROWS // (4 * machine.n_threads)),
    )
    private = (
        256 + SCRATCH + panels * (2 * 64 * (k // values.group_of(w.kind) + 1) + width * ROWS * k)
    )
    params = (x_size, codec.tables_address(w.kind), panels * ROWS)
    types = (w.kind.name, form)
    product = Step(
        mul_mat_panel, (node, w, x), params, types, step.shared, private, takes=step.leaves
    )
    return [step, product]
