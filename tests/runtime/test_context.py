"""Contexts: however work is cut and mixed, the answers are those of the plain way."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from llamapy.core.errors import Aborted, BatchError, ContextFullError, QuantError, UsageError
from llamapy.runtime.batch import Batch
from llamapy.runtime.context import Context
from tests.archs import naive
from tests.runtime.conftest import BACKENDS, TINY, close, tiny, tokens

Make = Callable[..., Context]


def plain(make: Make, ids: list[int], name: str = "llama") -> np.ndarray:
    return make(name).decode(Batch(ids, outputs="all"))


@pytest.mark.parametrize("n_ubatch", [1, 3, 16])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_ubatches(make: Make, name: str, n_ubatch: int) -> None:
    ids = tokens(20)
    got = make(name, n_ubatch=n_ubatch).decode(Batch(ids, outputs="all"))
    assert close(got, plain(make, ids, name))


def test_calls(make: Make) -> None:
    """A text decoded in several calls, outputs chosen here and there."""
    ids = tokens(20)
    context, want = make(), plain(make, ids)
    assert context.decode(Batch(ids[:7], outputs="none")).shape == (0, want.shape[1])
    got = context.decode(Batch(ids[7:12], outputs=[True, False, False, True, False]))
    assert close(got, want[[7, 10]])
    assert close(context.decode(ids[12:]), want[-1:])
    assert close(context.logits, want[-1:])
    assert not np.shares_memory(context.logits, got)
    view = context.decode([5], copy=False)
    assert np.shares_memory(context.logits, view)


def test_sequences_do_not_see_each_other(make: Make) -> None:
    a, b = tokens(9, 1), tokens(9, 2)
    mixed = [t for pair in zip(a, b) for t in pair]
    context = make(n_seq_max=2, n_ubatch=5)
    got = context.decode(Batch(mixed, sequences=[0, 1] * 9, outputs="all"))
    assert close(got[::2], plain(make, a)) and close(got[1::2], plain(make, b))


def test_shared_prefix(make: Make) -> None:
    """A prefix computed once for two sequences, by a shared batch and by a copy."""
    prefix, a, b = tokens(8, 1), tokens(4, 2), tokens(4, 3)
    want_a, want_b = plain(make, prefix + a)[-4:], plain(make, prefix + b)[-4:]
    shared = make(n_seq_max=2)
    shared.decode(Batch(prefix, sequences=[[0, 1]] * 8, outputs="none"))
    got = shared.decode(Batch(a + b, sequences=[0] * 4 + [1] * 4, outputs="all"))
    assert close(got, np.concatenate([want_a, want_b]))
    copied = make(n_seq_max=2)
    copied.decode(Batch(prefix, outputs="none"))
    copied.memory.copy(0, 1)
    assert close(copied.decode(Batch(b, sequences=1, outputs="all")), want_b)
    copied.memory.keep(1)
    assert copied.memory.pos_max(0) == -1 and copied.memory.pos_max(1) == 11


def test_remove_and_go_on(make: Make) -> None:
    ids, other = tokens(12, 1), tokens(4, 2)
    context = make()
    context.decode(ids)
    assert context.memory.remove(0, 8)
    want = plain(make, ids[:8] + other)[-4:]
    assert close(context.decode(Batch(other, outputs="all")), want)


@pytest.mark.parametrize("kind, limit", [("f32", 1e-9), ("f16", 1e-3), ("q8_0", 1e-2)])
def test_shift_is_recompute(make: Make, kind: str, limit: float) -> None:
    """In a model of one layer keys and values depend on their token alone, so moving cells must
    equal doing it anew."""
    ids, following = tokens(20, 1), tokens(3, 2)
    context = make("llama-k", type_k=kind, type_v=kind)
    context.decode(ids)
    context.memory.remove(0, 4, 10)
    context.memory.shift(0, 10, -1, -6)
    assert context.memory.pos_max(0) == 13
    got = context.decode(Batch(following, outputs="all"))
    anew = make("llama-k", type_k=kind, type_v=kind)
    anew.decode(ids[:4] + ids[10:])
    assert close(got, anew.decode(Batch(following, outputs="all")), limit)


def test_divide_is_recompute(make: Make) -> None:
    """Positions divided by two and multiplied again in one step of the sequence's end."""
    ids = tokens(6, 1)
    context = make("llama-k")
    context.decode(ids)
    context.memory.divide(0, 4, -1, 2)  # positions 4 and 5 become 2 and 2
    assert context.memory.pos_max(0) == 3
    cells = next(context.memory.caches()).cells
    assert cells.pos[:6].tolist() == [0, 1, 2, 3, 2, 2]
    assert cells.delta[:6].tolist() == [0, 0, 0, 0, -2, -3]


def test_long_text_through_a_window(make: Make) -> None:
    """Far more tokens than the windowed layers' cache has cells, against the float64 twin."""
    ids = tokens(330)
    context = make("gemma3", n_ctx=384, n_ubatch=16)
    near = next(kv for kv in context.memory.caches() if kv.window)
    assert near.cells.n == 256
    got = np.concatenate(
        [context.decode(Batch(ids[i : i + 50], outputs="all")) for i in range(0, 330, 50)]
    )
    assert close(got, naive.logits(TINY / "gemma3.gguf", ids), 1e-8)


def test_window_cannot_go_back(make: Make) -> None:
    """What the windowed layers have written over is gone: `remove` says so and leaves all as it
    is."""
    ids = tokens(330)
    context = make("gemma3", n_ctx=384, n_ubatch=16)
    for i in range(0, 330, 33):
        context.decode(Batch(ids[i : i + 33], outputs="none"))
    assert not context.memory.remove(0, 60)
    assert context.memory.pos_max(0) == 329
    assert context.memory.remove(0, 320)
    got = context.decode(ids[320:330])
    assert close(got, naive.logits(TINY / "gemma3.gguf", ids)[-1:], 1e-8)


def test_embeddings_as_input_and_output(make: Make) -> None:
    ids = tokens(10)
    f = naive.File(TINY / "llama.gguf")
    table = f["token_embd"].astype(np.float32)
    context = make(embeddings=True)
    got = context.decode(Batch(embeddings=table[ids], outputs="all"))
    assert close(got, plain(make, ids))
    assert close(context.embeddings @ f.head.T.astype(np.float32), got)


def test_graphs_are_used_again(make: Make) -> None:
    context = make(n_ctx=600)
    context.decode(tokens(250))
    for i in range(10):
        context.decode([7 + i])
    assert context.n_reused == 8  # compiled for the prompt, for 256 visible cells, for 512
    n_bytes = context.n_compute_bytes
    context.decode(tokens(40))
    assert context.n_compute_bytes == n_bytes


def test_full_context_changes_nothing(make: Make) -> None:
    ids = tokens(60)
    context = make()
    context.decode(ids)
    with pytest.raises(ContextFullError, match="64 positions 60 are taken"):
        context.decode(tokens(5))
    assert context.memory.pos_max(0) == 59
    assert close(context.decode([9, 8, 7, 6]), plain(make, [*ids, 9, 8, 7, 6])[-1:])


@pytest.mark.parametrize(
    "batch, message",
    [
        (Batch([]), "empty"),
        (Batch(), "either tokens or embeddings"),
        (Batch([1], embeddings=np.zeros((1, 48), np.float32)), "either"),
        (Batch([5, 288]), "token 1 of the batch is 288"),
        (Batch([-1]), "token 0 of the batch is -1"),
        (Batch([1.5]), "integers"),  # type: ignore[list-item]
        (Batch([5], positions=[7]), "ends at position 3, but the batch goes on at 7"),
        (Batch([5, 6], positions=[4, 6]), "position 6 follows 4"),
        (Batch([5, 6], positions=[4, 4]), "position 4 follows 4"),
        (Batch([5], positions=[-1]), "position -1"),
        (Batch([5], positions=[1, 2]), "1 integers"),
        (Batch([5], sequences=1), r"sequences \[1\]"),
        (Batch([5], sequences=[[]]), r"sequences \[\]"),
        (Batch([5, 6], sequences=[0]), "1 sequences for 2 tokens"),
        (Batch([5], outputs=[True, False]), "2 outputs for 1 tokens"),
        (Batch([5], outputs="some"), "last, all or none"),
        (Batch(embeddings=np.zeros((1, 7), np.float32)), r"\[n, 48\]"),
        (Batch([5] * 65), "at most 64"),
    ],
)
def test_wrong_batches(batch: Batch, message: str) -> None:
    context = Context(tiny("llama"), n_ctx=64, backend="reference")
    context.decode([1, 2, 3, 4])
    with pytest.raises(BatchError, match=message):
        context.decode(batch)
    assert context.memory.pos_max(0) == 3


def test_wrong_options() -> None:
    model = tiny("llama")
    with pytest.raises(QuantError, match="heads of 16 values do not divide into q8_0 blocks of 32"):
        Context(model, n_ctx=64, backend="reference", type_k="q8_0")
    with pytest.raises(UsageError, match="no device 'gpu'"):
        Context(model, n_ctx=64, backend="gpu")
    with pytest.raises(UsageError, match="n_ubatch is 0"):
        Context(model, n_ctx=64, backend="reference", n_ubatch=0)
    with pytest.raises(UsageError, match="not on, off or auto"):
        Context(model, n_ctx=64, backend="reference", flash_attn="maybe")
    with pytest.raises(QuantError, match="unknown tensor type"):
        Context(model, n_ctx=64, backend="reference", type_k="q9")


def test_abort_changes_nothing(make: Make) -> None:
    """Aborted in the third of five ubatches: memory is as before, and the same decode then
    works."""
    ids = tokens(45)
    context = make(n_ubatch=10)
    context.decode(ids[:5])
    runs = 0

    def stop(*_: object, run: Callable[..., Any] = context._run) -> Any:
        nonlocal runs
        runs += 1
        if runs == 3:
            context.abort()
        return run(*_)

    context._run = stop  # type: ignore[method-assign]
    with pytest.raises(Aborted):
        context.decode(Batch(ids[5:], outputs="all"))
    assert runs == 3 and context.memory.pos_max(0) == 4
    got = context.decode(Batch(ids[5:], outputs="all"))
    assert close(got, plain(make, ids)[5:])


def test_abort_when_idle_is_nothing(make: Make) -> None:
    context = make()
    context.abort()
    assert context.decode([5]).shape == (1, 288)


def test_two_threads_share_a_model(make: Make) -> None:
    """Two contexts of one model, each in its thread, many small steps: as each alone."""
    texts = [tokens(24, 1), tokens(24, 2)]
    want = [plain(make, ids) for ids in texts]
    got: list[np.ndarray] = [np.empty(0)] * 2

    def work(i: int) -> None:
        context = make()
        got[i] = np.concatenate([context.decode([t]) for t in texts[i]])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert close(got[0], want[0]) and close(got[1], want[1])


@pytest.mark.skipif("cpu" not in BACKENDS, reason="the CPU backend has threads")
def test_threads_end_with_the_context() -> None:
    """Closed by hand, by `with`, or when nobody uses it any more."""

    def n_threads() -> int:
        return sum(thread.name.startswith("llamapy-") for thread in threading.enumerate())

    gc.collect()  # contexts of other tests
    before = n_threads()
    with Context(tiny("llama"), n_ctx=64, threads=2):
        assert n_threads() > before
    assert n_threads() == before
    context = Context(tiny("llama"), n_ctx=64, threads=2)
    assert n_threads() > before
    del context
    gc.collect()
    assert n_threads() == before
