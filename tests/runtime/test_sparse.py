"""A cache that begins in sparse memory: moving on loses nothing, and happens where it should."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from llamapy.backend import backend as backends
from llamapy.backend.backend import view
from llamapy.backend.cpu.device import CPU
from llamapy.graph import Tensor
from llamapy.nn.cache import Layer
from llamapy.runtime import state
from llamapy.runtime.batch import Batch
from llamapy.runtime.context import Context
from llamapy.runtime.memory import kv
from llamapy.runtime.memory.kv import KV
from tests.runtime.conftest import HAS_CPU, tiny, tokens

pytestmark = pytest.mark.skipif(not HAS_CPU, reason="needs the CPU backend")

OFFERED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def never(_: CPU, n_bytes: int) -> None:
    """In place of `allocate_sparse`."""


def story(name: str, kind: str, moves: int) -> list[bytes]:
    """Logits and memory of a context that goes through all that a cache goes through. `moves`: how
    often each cache has moved at the end."""
    options = {"n_seq_max": 2, "n_ubatch": 8, "type_k": kind, "type_v": kind, "threads": 2}
    context = Context(tiny(name), n_ctx=64, **options)  # type: ignore[arg-type]
    memory, seen = context.memory, []

    def decode(ids: list[int], seq: int) -> None:
        for _ in range(2):  # the second time with a compiled graph
            seen.append(context.decode(Batch(ids, sequences=seq)).tobytes())
            ids = [7]

    decode(tokens(9, 1), 0)
    saved = state.save(context, 0)
    memory.copy(0, 1)
    decode(tokens(3, 2), 1)
    assert memory.n_moves == 0
    decode(tokens(20, 3), 0)  # in three parts: it moves in the midst of a batch
    assert memory.n_moves == moves
    memory.remove(1)
    memory.remove(0, 5, 9)
    memory.shift(0, 9, -1, -4)
    decode(tokens(4, 4), 0)
    seen.append(state.save(context))
    memory.clear()
    decode(tokens(5, 5), 1)
    state.load(context, saved, 0)
    decode(tokens(2, 6), 0)
    assert memory.n_moves == moves
    return [*seen, state.save(context)]


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0", "q4_0"])
@pytest.mark.parametrize(("name", "n_caches"), [("llama-k", 1), ("gemma3", 2)])
def test_all_is_as_if_it_had_never_moved(
    name: str, n_caches: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(CPU, "allocate_sparse", never)
        want = story(name, kind, 0)
    if not hasattr(backends.mmap, "MADV_NOHUGEPAGE"):
        pytest.skip("the system knows no sparse memory")
    monkeypatch.setattr(kv, "FEW", 16)
    assert story(name, kind, n_caches) == want


def test_a_state_beyond_the_first_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading writes cells, too, beside those of another sequence that are there."""
    monkeypatch.setattr(kv, "FEW", 16)
    context = Context(tiny("llama"), n_ctx=64, n_seq_max=2)
    context.decode(tokens(12, 1))
    first = state.save(context, 0)
    state.load(context, first, 1)
    assert context.memory.n_moves == 1
    assert state.save(context, 0) == first


def few(n_cells: int) -> KV:
    """A cache of four layers, 512 bytes a row."""
    layers = [Layer(i, n_head_kv=4, n_k=64, n_v=64) for i in range(4)]
    cpu = CPU(1)
    return KV(layers, n_cells=n_cells, n_seq_max=1, kinds=("f16", "f16"), place=lambda _: cpu)


def take(cache: KV, first: int, end: int) -> None:
    n = end - first
    cache.take(np.arange(first, end), np.arange(first, end, dtype=np.int32), np.ones((n, 1), bool))


def rows(cache: KV) -> list[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    """The first FEW cells of each tensor, as bytes that can be written."""
    tensors = [*cache.k.values(), *cache.v.values()]
    return [view(tensor)[: kv.FEW * tensor.nb[1]] for tensor in tensors]


def mapping(tensor: Tensor) -> tuple[dict[str, int], set[str]]:
    """{"Rss": KiB, "AnonHugePages": KiB ...} of the mapping that the tensor begins in, and its
    flags ("hg": large pages are asked for, "nh": they are not wanted)."""
    assert tensor.data is not None
    found: dict[str, int] = {}
    flags: set[str] = set()
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if span := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(span[1], 16) <= tensor.data < int(span[2], 16)
        elif inside and (size := re.match(r"(\w+): +(\d+) kB", line)):
            found[size[1]] = int(size[2])
        elif inside and line.startswith("VmFlags:"):
            flags = set(line.split()[1:])
    return found, flags


def test_a_small_cache_stays_where_it_is() -> None:
    cache = few(kv.FEW)
    take(cache, 0, kv.FEW)
    assert cache.moves == 0


@pytest.mark.skipif(
    not OFFERED.exists() or "[never]" in OFFERED.read_text(), reason="needs large pages"
)
def test_small_pages_first_then_large_ones() -> None:
    cache = few(16 * kv.FEW)  # 8 MiB a tensor
    take(cache, 0, kv.FEW)
    want = np.random.default_rng(0).integers(0, 256, (8, kv.FEW * 512), np.uint8)
    for there, values in zip(rows(cache), want, strict=True):
        there[:] = values
    before, flags = mapping(cache.v[3])
    assert "nh" in flags and before["AnonHugePages"] == 0
    assert want.nbytes <= before["Rss"] * 1024 < want.nbytes + (1 << 20)  # nothing but the rows
    take(cache, kv.FEW, kv.FEW + 1)
    assert cache.moves == 1
    assert all((there == values).all() for there, values in zip(rows(cache), want, strict=True))
    _, flags = mapping(cache.v[3])
    assert "hg" in flags and "nh" not in flags  # the system gives as many as it has
