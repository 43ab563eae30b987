"""cont, cast, cpy, repeat: elements in order from one layout and type to another (phantom a: from,
b: to)."""

from __future__ import annotations

from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu import values
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import block_of
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, mem
from llamapy.quants import codec

OPS = ("cont", "cast", "cpy", "repeat")
NUMBERS = (*values.PLAIN, "i32")


@compiled
def element(node, t, i):
    """Address of element i of tensor t, counted in order."""
    i0, rest = i % rec.ne(node, t, 0), i // rec.ne(node, t, 0)
    return rec.row_address(node, t, rest) + i0 * rec.nb(node, t, 0)


@kernel
def copy_rows(node, ith, nth, sync, a, b):
    """Rows of equal length; source elements may be apart. Parameters: tables of the source and of
    the result type."""
    n = rec.ne(node, 0, 0)
    scratch = rec.private(node, ith)
    flat = scratch + values.SCRATCH
    first, last = block_of(rec.n_rows(node, 0), ith, nth)
    for r in range(first, last):
        x, y = rec.like_row_address(node, 1, r), rec.row_address(node, 0, r)
        if rec.param(node, 2) == 1:
            for i in range(n):
                mem.put_f32(flat, i, values.load_1(a, element(node, 1, r * n + i), 0))
        elif rec.nb(node, 1, 0) == values.n_bytes(a):
            values.row_to_f32(a, x, flat, n, scratch, rec.param(node, 0))
        else:
            for i in range(n):
                mem.put_f32(flat, i, values.load_1(a, x + i * rec.nb(node, 1, 0), 0))
        values.row_from_f32(b, flat, y, n, rec.param(node, 1))


@kernel
def copy_elements(node, ith, nth, sync, a, b):
    """Any two shapes of as many plain numbers; rows of the source are repeated to the result if
    they are shorter."""
    n = rec.ne(node, 0, 0)
    repeats = rec.param(node, 0)
    first, last = block_of(rec.n_rows(node, 0), ith, nth)
    for r in range(first, last):
        y = rec.row_address(node, 0, r)
        for i in range(n):
            if repeats == 1:
                x = rec.like_row_address(node, 1, r) + i % rec.ne(node, 1, 0) * rec.nb(node, 1, 0)
            else:
                x = element(node, 1, r * n + i)
            values.put_1(b, y + i * rec.nb(node, 0, 0), 0, values.load_1(a, x, 0))


@kernel
def copy_bits(node, ith, nth, sync, a, b):
    """32-bit integers, unchanged; parameter 0: 1 to repeat."""
    n = rec.ne(node, 0, 0)
    first, last = block_of(rec.n_rows(node, 0), ith, nth)
    for r in range(first, last):
        y = rec.row_address(node, 0, r)
        for i in range(n):
            if rec.param(node, 0) == 1:
                x = rec.like_row_address(node, 1, r) + i % rec.ne(node, 1, 0) * rec.nb(node, 1, 0)
            else:
                x = element(node, 1, r * n + i)
            mem.put_i32(y + i * rec.nb(node, 0, 0), 0, mem.i32(x, 0))


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    x, kinds = node.src[0], (node.src[0].kind.name, node.kind.name)
    repeats = int(node.op is not None and node.op.name == "repeat")
    if kinds == ("i32", "i32"):
        return [Step(copy_bits, (node, x), (repeats,), types=kinds)]
    as_elements = repeats or "i32" in kinds or x.ne != node.ne or not node.contiguous_rows
    if all(k in NUMBERS for k in kinds) and as_elements:
        return [Step(copy_elements, (node, x), (repeats,), types=kinds)]
    reshaped = int(x.ne != node.ne)
    if not node.contiguous_rows or not (x.contiguous_rows or kinds[0] in values.PLAIN):
        return None
    if reshaped and kinds[0] not in values.PLAIN:
        return None
    if not all(_convertible(k, to) for k, to in zip(kinds, (False, True))):
        return None
    params = (codec.tables_address(x.kind), codec.tables_address(node.kind), reshaped)
    return [
        Step(copy_rows, (node, x), params, types=kinds, private=values.SCRATCH + 4 * node.ne[0])
    ]


def _convertible(name: str, to: bool) -> bool:
    kind = codec.get(name)
    return name in values.PLAIN or (kind.encode if to else kind.unpack) is not None
