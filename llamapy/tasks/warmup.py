"""Compiling kernels ahead: those of one model, or one of each kind that any model can need.

Knows which graphs and nodes call for which kernels; that they are compiled in several processes is
the business of `native.crew`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llamapy.backend.cpu.device import CPU
from llamapy.backend.cpu.step import planners
from llamapy.backend.cpu.threads import budget
from llamapy.backend.cpu.values import PLAIN
from llamapy.core.errors import ShapeError
from llamapy.graph import Builder, Tensor
from llamapy.graph.op import maker
from llamapy.native import Compiled, crew
from llamapy.quants import codec
from llamapy.runtime.context import Context
from llamapy.runtime.memory.kv import CACHE_TYPES, cache_type
from llamapy.runtime.model import Model

Report = Callable[[str, int, int], None]
ACTIVATION_BITS = (8, 16)  # to run, to measure
N_TOKENS = (1, 4, 512)  # ubatches: an answer's, a few at once, a prompt's


@dataclass(frozen=True)
class Warmed:
    """n_kernels of which n_compiled were not there before."""

    n_kernels: int
    n_compiled: int


def of_model(
    model: Model, *, type_k: str = "f16", type_v: str = "f16", report: Report | None = None
) -> Warmed:
    """Compile what running this model takes, with caches of these types."""
    k, v = cache_type(type_k), cache_type(type_v)
    with Context(model, n_ctx=1024, type_k=k, type_v=v) as context:
        nodes = [n for count in N_TOKENS for n in context.graph(count).nodes]
        return _compile(nodes, report)


def of_all(report: Report | None = None) -> Warmed:
    """Compile kernels for every op and every type of weights and caches, and the quantizers."""
    nodes = [*_of_weights(), *_of_caches(), *_others()]
    encoders: list[crew.Wanted] = [
        (kind.encode, codec.ENCODE)
        for kind in codec.registry().values()
        if kind.encode is not None and isinstance(kind.encode, Compiled)
    ]
    return _compile(nodes, report, encoders)


def _compile(
    nodes: list[Tensor], report: Report | None, more: list[crew.Wanted] | None = None
) -> Warmed:
    wanted = dict.fromkeys([*crew.ALWAYS, *(more or [])])
    for bits in ACTIVATION_BITS:
        cpu = CPU(1, activation_bits=bits)
        try:
            wanted |= dict.fromkeys(cpu.wanted(nodes))
        finally:
            cpu.close()
    return Warmed(len(wanted), crew.load(list(wanted), budget(), report))


def _of_weights() -> Iterator[Tensor]:
    one, few, many = _f32(512, 1), _f32(512, 8), _f32(512, 64)
    tokens = Tensor("i32", (64,))
    g = Builder()
    for kind in codec.registry().values():
        if kind.name not in PLAIN and kind.unpack is None:
            continue
        weight, experts = Tensor(kind, (512, 32)), Tensor(kind, (512, 32, 4))
        yield g.get_rows(weight, tokens)
        for x in (one, few, many):
            yield g.mul_mat(weight, x)
        yield g.mul_mat_id(experts, _f32(512, 1, 64), Tensor("i32", (2, 64)))


def _of_caches() -> Iterator[Tensor]:
    g = Builder()
    for name in CACHE_TYPES:
        cache = Tensor(name, (64, 256, 2))
        yield g.set_rows(Tensor(name, (128, 256)), _f32(128, 4), Tensor("i64", (4,)))
        for n in (1, 64):
            mask = Tensor("f16", (256, 64))
            yield g.flash_attn(_f32(64, n, 4), cache, cache, mask, scale=0.125)


def _others() -> Iterator[Tensor]:
    """Ops that take one to three float32 tensors and can do without fields."""
    x = _f32(64, 4)
    for op in planners():
        for n in (1, 2, 3):
            try:
                yield maker(op)(*[x] * n)
            except (TypeError, ValueError, ShapeError, StopIteration, RuntimeError):
                continue


def _f32(*ne: int) -> Tensor:
    return Tensor("f32", ne)
