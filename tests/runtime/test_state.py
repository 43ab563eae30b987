"""State: round trips, faults, and files that llama.cpp wrote or reads."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from llamapy.core.errors import ContextFullError, FileFormatError
from llamapy.runtime import state
from llamapy.runtime.batch import Batch
from llamapy.runtime.context import Context
from tests.runtime.conftest import TINY, close, tiny, tokens

if TYPE_CHECKING:
    from peer import Peer

Make = Callable[..., Context]

ARRAY = [ctypes.c_void_p, ctypes.c_size_t]  # address and number of tokens


@pytest.fixture
def make() -> Make:
    """State does not depend on who computes: the reference backend is enough."""

    def make(name: str = "llama", **options: object) -> Context:
        return Context(tiny(name), **{"n_ctx": 64, "backend": "reference"} | options)  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_whole(make: Make, name: str, kind: str) -> None:
    ids, following = tokens(20), tokens(4, 9)
    context = make(name, type_k=kind, type_v=kind)
    context.decode(ids)
    data = state.save(context)
    want = context.decode(Batch(following, outputs="all"))
    other = make(name, type_k=kind, type_v=kind, flash_attn=False)
    other.decode(tokens(33, 5))
    state.load(other, data)
    assert other.memory.pos_max(0) == 19
    assert close(other.decode(Batch(following, outputs="all")), want, 1e-6)
    assert state.save(context) != data


def test_one_sequence(make: Make) -> None:
    """A sequence taken out of a mixed cache and put into another one, beside what is there."""
    a, b, following = tokens(8, 1), tokens(8, 2), tokens(4, 3)
    context = make(n_seq_max=2)
    context.decode(Batch([t for pair in zip(a, b) for t in pair], sequences=[0, 1] * 8))
    data = state.save(context, 1)
    other = make(n_seq_max=3)
    other.decode(Batch(tokens(5, 4), sequences=2))
    state.load(other, data, 0)
    assert (other.memory.pos_max(0), other.memory.pos_max(1), other.memory.pos_max(2)) == (7, -1, 4)
    alone = make()
    alone.decode(b)
    want = alone.decode(Batch(following, outputs="all"))
    assert close(other.decode(Batch(following, outputs="all")), want, 1e-6)


def test_after_a_shift(make: Make) -> None:
    """Keys that wait to be turned are turned before they are saved."""
    context = make("llama-k", type_k="f32", type_v="f32")
    context.decode(tokens(12))
    context.memory.remove(0, 2, 6)
    context.memory.shift(0, 6, -1, -4)
    data = state.save(context)
    other = make("llama-k", type_k="f32", type_v="f32")
    state.load(other, data)
    assert close(other.decode([7]), context.decode([7]))


def test_files(make: Make, tmp_path: Path) -> None:
    ids = tokens(10)
    context = make()
    context.decode(ids)
    state.save_session(context, tmp_path / "session", ids)
    state.save_sequence(context, tmp_path / "sequence", 0, ids)
    want = context.decode([9])
    for load in (
        lambda c: state.load_session(c, tmp_path / "session"),
        lambda c: state.load_sequence(c, tmp_path / "sequence", 0),
    ):
        other = make()
        assert load(other) == ids
        assert close(other.decode([9]), want)


def test_every_cut_is_refused(make: Make) -> None:
    """No prefix of a state is taken, and the memory stays as it was."""
    context = make()
    context.decode(tokens(3))
    data = state.save(context)
    other = make()
    other.decode(tokens(6, 2))
    for n in [*range(120), *range(120, len(data), 997), len(data) - 1]:
        with pytest.raises(FileFormatError):
            state.load(other, data[:n])
    with pytest.raises(FileFormatError, match="1 bytes are left over"):
        state.load(other, data + b"x")
    assert other.memory.pos_max(0) == 5


def test_other_contexts_are_refused(make: Make, tmp_path: Path) -> None:
    context = make()
    context.decode(tokens(40))
    data = state.save(context)
    with pytest.raises(FileFormatError, match="type: 1 instead of 0"):
        state.load(make(type_k="f32"), data)
    with pytest.raises(FileFormatError, match="layers: 2 instead of 3"):
        state.load(make("llama-tied"), data)
    with pytest.raises(ContextFullError, match="40 cells, the context room for 32"):
        state.load(make(n_ctx=32), data)
    state.save_session(context, tmp_path / "s", tokens(40))
    with pytest.raises(FileFormatError, match="'llama', the model's is 'qwen2'"):
        state.load_session(make("qwen2"), tmp_path / "s")
    with pytest.raises(FileFormatError, match="magic"):
        state.load_sequence(make(), tmp_path / "s", 0)
    with pytest.raises(FileFormatError, match="cannot be read"):
        state.load_session(make(), tmp_path / "none")
    huge = struct.pack("<II", 1, 2**31)
    with pytest.raises(FileFormatError, match="more than the bytes"):
        state.load(make(), huge)


@pytest.mark.peer
@pytest.mark.parametrize("flash", ["on", "off"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_the_peers_files(make: Make, peer: Peer, tmp_path: Path, name: str, flash: str) -> None:
    """llama.cpp's session and sequence files (without flash attention they hold V transposed)."""
    ids, following, lib = tokens(20), tokens(4, 9), peer.lib
    lib.llama_state_save_file.argtypes = [ctypes.c_void_p, ctypes.c_char_p, *ARRAY]
    lib.llama_state_seq_save_file.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_int,
        *ARRAY,
    ]
    lib.llama_state_seq_save_file.restype = ctypes.c_size_t
    held = np.array(ids, np.int32)
    with (
        peer.open(TINY / f"{name}.gguf") as model,
        model.context(n_ctx=256, flash_attention=flash) as theirs,
    ):
        want = theirs.logits(ids + following)[-4:]
        theirs.logits(ids)
        whole, one = str(tmp_path / "whole").encode(), str(tmp_path / "one").encode()
        assert lib.llama_state_save_file(theirs.handle, whole, held.ctypes.data, 20)
        assert lib.llama_state_seq_save_file(theirs.handle, one, 0, held.ctypes.data, 20)
    ours = make(name)
    assert state.load_session(ours, tmp_path / "whole") == ids
    assert close(ours.decode(Batch(following, outputs="all")), want, 1e-4)
    ours = make(name, n_seq_max=2)
    assert state.load_sequence(ours, tmp_path / "one", 1) == ids
    assert close(ours.decode(Batch(following, sequences=1, outputs="all")), want, 1e-4)


@pytest.mark.peer
def test_the_peer_reads_ours(make: Make, peer: Peer, tmp_path: Path) -> None:
    """The release that we can call wants the version before: without the two sizes of matrices."""
    ids, following, lib = tokens(20), tokens(4, 9), peer.lib
    ours = make()
    ours.decode(ids)
    data = state.save(ours, 0)
    at = 8 + 20 * 12 + 8
    assert data[at : at + 8] == bytes(8)
    old = struct.pack("<III20i", 0x67677371, 3, 20, *ids) + data[:at] + data[at + 8 :]
    (tmp_path / "one").write_bytes(old)
    load = lib.llama_state_seq_load_file
    load.restype = ctypes.c_size_t
    load.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, *ARRAY, ctypes.c_void_p]
    held, count = np.zeros(64, np.int32), ctypes.c_size_t()
    with (
        peer.open(TINY / "llama.gguf") as model,
        model.context(n_ctx=256, flash_attention="on") as theirs,
    ):
        want = theirs.logits(ids + following)[-4:]
        theirs.clear()
        path = str(tmp_path / "one").encode()
        n = load(theirs.handle, path, 0, held.ctypes.data, 64, ctypes.addressof(count))
        assert n == len(old) and held[:20].tolist() == ids
        theirs.decode(following, 20, outputs=np.ones(4))
        assert close(theirs.rows(4), want, 1e-5)
    assert close(ours.decode(Batch(following, outputs="all")), want, 1e-4)
