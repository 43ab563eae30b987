"""Drive a prebuilt llama.cpp, the reference for every comparison: same file, tokens and threads.

The library comes from an npm package (peer_fetch.py) and is called through ctypes (peer_abi.py).
LLAMAPY_PEER_CPU (haswell, icelake, sapphirerapids, ...) restricts it to one CPU level.
Quantization, perplexity and benchmarks are in peer_tasks.py. As a library:

    peer = connect()                                  # PeerUnavailable says why it cannot be had
    with peer.open("model.gguf") as model:
        ids = model.tokenize("Hello")
        with model.context(n_ctx=512, threads=2) as context:
            logits = context.logits(ids)              # [n_tokens, n_vocab] float32

llama.cpp aborts the whole process on some faults, so give it only what it should be able to read.
Tokens are lists of int, texts may be str or bytes. As a program: `python tools/peer.py --help`.
"""

from __future__ import annotations

import ctypes as C
import functools
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import peer_abi as abi
from peer_fetch import PeerError, PeerUnavailable, fetch

Floats = npt.NDArray[np.float32]
Override = bool | int | float | str


@functools.cache
def connect(verbose: bool = False) -> Peer:
    """The peer of this process, loaded once. PeerUnavailable when it cannot be had."""
    return Peer(verbose)


def _owned(values: npt.NDArray[Any]) -> C.c_void_p:
    return values.ctypes.data_as(C.c_void_p)


class _Closing:
    """Something that llama.cpp allocated: freed by `close` or at the end of a `with`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError


class Peer:
    """The loaded library. Get it from `connect`."""

    def __init__(self, verbose: bool = False) -> None:
        folder = fetch()
        try:
            base = C.CDLL(str(folder / "libggml-base.so"))
            ggml = C.CDLL(str(next(folder.glob("libggml.v*.so"))))
            self.lib = C.CDLL(str(next(folder.glob("libllama.v*.so"))))
        except (OSError, StopIteration) as error:
            raise PeerUnavailable(f"llama.cpp in {folder} does not load: {error}") from error
        abi.declare(self.lib)
        if other := abi.differences(self.lib):
            raise PeerUnavailable(f"llama.cpp in {folder} is another release: {other}")
        self.type_ids = abi.type_ids(base)
        self._errors: deque[str] = deque(maxlen=3)
        self._verbose = verbose
        self._log = abi.LOG(self._hear)
        self.lib.llama_log_set(C.cast(self._log, C.c_void_p), None)
        self._load_backends(ggml, folder)
        self.lib.llama_backend_init()

    def _load_backends(self, ggml: C.CDLL, folder: Path) -> None:
        level = os.environ.get("LLAMAPY_PEER_CPU", "")
        if not level:
            ggml.ggml_backend_load_all_from_path(str(folder).encode())
            return
        ggml.ggml_backend_load.restype = C.c_void_p
        if not ggml.ggml_backend_load(str(folder / f"libggml-cpu-{level}.so").encode()):
            known = sorted(p.stem.rpartition("-")[2] for p in folder.glob("libggml-cpu-*.so"))
            raise PeerUnavailable(f"no CPU level {level!r} here; there are {', '.join(known)}")

    def _hear(self, level: int, text: bytes, _: object) -> None:
        line = text.decode(errors="replace")
        if level == abi.LOG_ERROR:
            self._errors.append(line.strip())
        if self._verbose:
            sys.stderr.write(line)

    def error(self, what: str) -> PeerError:
        """A PeerError that says `what` failed and what llama.cpp logged about it."""
        said = "; ".join(self._errors)
        self._errors.clear()
        return PeerError(f"{what}: {said}" if said else what)

    def system_info(self) -> str:
        """Release and CPU features in use."""
        version, info = self.lib.llama_version(), self.lib.llama_print_system_info()
        return f"llama.cpp {version.decode()}: {info.decode()}"

    def type_id(self, name: str) -> int:
        """The number of a tensor type by name (`q4_k`, any case)."""
        if name.lower() not in self.type_ids:
            raise PeerError(f"unknown tensor type {name!r}; there are {', '.join(self.type_ids)}")
        return self.type_ids[name.lower()]

    def open(
        self,
        path: str | Path,
        *,
        vocab_only: bool = False,
        repack: bool = True,
        mmap: bool = True,
        overrides: Mapping[str, Override] | None = None,
    ) -> Model:
        """Load a GGUF file. `repack=False` leaves weights in the layout of the file."""
        params = self.lib.llama_model_default_params()
        params.vocab_only, params.use_extra_bufts = vocab_only, repack
        params.load_mode = abi.LOAD_MODE[mmap]
        keep = kv_overrides(overrides or {})
        params.kv_overrides = C.cast(keep, C.c_void_p) if overrides else None
        handle = self.lib.llama_model_load_from_file(os.fsencode(path), params)
        if not handle:
            raise self.error(f"llama.cpp cannot load {path}")
        return Model(self, handle)


def kv_overrides(values: Mapping[str, Override]) -> C.Array[abi.KvOverride]:
    """Metadata overrides as llama.cpp wants them: at most 127 bytes a text, integers as u32."""
    table = (abi.KvOverride * (len(values) + 1))()
    for entry, (key, value) in zip(table, values.items(), strict=False):
        entry.key = key.encode()
        if isinstance(value, bool):
            entry.tag, entry.value.as_bool = 2, value
        elif isinstance(value, int):
            entry.tag, entry.value.as_int = 0, value
        elif isinstance(value, float):
            entry.tag, entry.value.as_float = 1, value
        else:
            entry.tag, entry.value.as_str = 3, value.encode()[:127]
    return table


class Model(_Closing):
    """A loaded model with its vocabulary."""

    def __init__(self, peer: Peer, handle: int) -> None:
        self.peer, self.lib, self.handle = peer, peer.lib, handle
        self.vocab = self.lib.llama_model_get_vocab(handle)
        self.n_vocab: int = self.lib.llama_vocab_n_tokens(self.vocab)
        self.bos: int = self.lib.llama_vocab_bos(self.vocab)
        self.eos: int = self.lib.llama_vocab_eos(self.vocab)
        self.add_bos: bool = self.lib.llama_vocab_get_add_bos(self.vocab)

    def close(self) -> None:
        """Free the model; its contexts must be closed before."""
        if self.handle:
            self.lib.llama_model_free(self.handle)
            self.handle = 0

    def tokenize(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Token ids of `text`; special tokens around it and in it as asked."""
        raw = text.encode() if isinstance(text, str) else text
        ids = np.empty(4 * len(raw) + 16, np.int32)  # a space may become three byte tokens
        n = self.lib.llama_tokenize(
            self.vocab, raw, len(raw), _owned(ids), len(ids), add_special, parse_special
        )
        if n < 0:
            raise self.peer.error(f"llama_tokenize returned {n}")
        return [int(i) for i in ids[:n]]

    def detokenize(
        self, ids: Sequence[int], *, remove_special: bool = False, unparse_special: bool = True
    ) -> bytes:
        """The text of `ids` as bytes; special tokens are rendered unless told otherwise."""
        tokens = np.array(ids, np.int32)
        size = 64 + 64 * len(tokens)
        while True:
            text = C.create_string_buffer(size)
            n: int = self.lib.llama_detokenize(
                self.vocab, _owned(tokens), len(tokens), text, size, remove_special, unparse_special
            )
            if n >= 0:
                return text.raw[:n]
            size = -n

    def piece(self, token: int, *, special: bool = True) -> bytes:
        """The text of one token, without any treatment of leading spaces."""
        text = C.create_string_buffer(1024)
        n = self.lib.llama_token_to_piece(self.vocab, token, text, len(text), 0, special)
        return text.raw[: max(n, 0)]

    def is_end(self, token: int) -> bool:
        """Whether `token` ends a generation."""
        return bool(self.lib.llama_vocab_is_eog(self.vocab, token))

    def context(self, **options: Any) -> Context:
        """A context; `options` are the fields of ContextOptions."""
        return Context(self, ContextOptions(**options))


@dataclass(frozen=True)
class ContextOptions:
    """How to run a model. `n_ctx` counts the tokens of all sequences together."""

    n_ctx: int = 2048
    n_batch: int = 2048
    n_ubatch: int = 512
    n_seq: int = 1
    threads: int = 2
    flash_attention: str = "auto"  # auto, off, on
    type_k: str = "f16"
    type_v: str = "f16"
    swa_full: bool = False  # llama.cpp's tools say no, its library says yes
    kv_unified: bool = False
    embeddings: bool = False
    pooling: str = ""  # none, mean, cls, last, rank; empty asks the model

    def params(self, peer: Peer) -> abi.ContextParams:
        """The struct that llama_init_from_model wants."""
        p: abi.ContextParams = peer.lib.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = (
            self.n_ctx,
            self.n_batch,
            self.n_ubatch,
            self.n_seq,
        )
        p.n_threads = p.n_threads_batch = self.threads
        p.flash_attn_type = abi.FLASH_ATTENTION[self.flash_attention]
        p.type_k, p.type_v = peer.type_id(self.type_k), peer.type_id(self.type_v)
        p.swa_full, p.kv_unified, p.embeddings = self.swa_full, self.kv_unified, self.embeddings
        if self.pooling:
            p.pooling_type = abi.POOLING[self.pooling]
        return p


class Context(_Closing):
    """A running state of a model: the cache and the outputs of the last batch."""

    def __init__(self, model: Model, options: ContextOptions) -> None:
        self.model, self.lib, self.options = model, model.lib, options
        self.handle = self.lib.llama_init_from_model(model.handle, options.params(model.peer))
        if not self.handle:
            raise model.peer.error(f"llama.cpp cannot make a context with {options}")
        self.memory = self.lib.llama_get_memory(self.handle)  # None for encoders

    def close(self) -> None:
        """Free the context."""
        if self.handle:
            self.lib.llama_free(self.handle)
            self.handle = None

    def clear(self) -> None:
        """Forget all sequences."""
        if self.memory:
            self.lib.llama_memory_clear(self.memory, True)

    def decode(
        self,
        tokens: Sequence[int] | npt.NDArray[Any],
        start: int = 0,
        *,
        positions: Sequence[int] | npt.NDArray[Any] | None = None,
        sequences: Sequence[int] | npt.NDArray[Any] | None = None,
        outputs: Sequence[bool] | npt.NDArray[Any] | None = None,
    ) -> None:
        """Run one batch. Without `positions` they count from `start`; without `outputs` the last
        token gives one; without `sequences` all belong to sequence 0."""
        n = len(tokens)
        ids = np.asarray(tokens, np.int32)
        pos = np.arange(start, start + n) if positions is None else np.asarray(positions)
        pos = pos.astype(np.int32)
        seq = np.zeros(n, np.int32) if sequences is None else np.asarray(sequences, np.int32)
        seq_at = (seq.ctypes.data + seq.itemsize * np.arange(n)).astype(np.uintp)
        one = np.ones(n, np.int32)
        out = np.arange(n) == n - 1 if outputs is None else np.asarray(outputs)
        out = out.astype(np.int8)
        batch = abi.Batch(n, _owned(ids), None, _owned(pos), _owned(one), _owned(seq_at))
        batch.logits = _owned(out)
        if status := self.lib.llama_decode(self.handle, batch):
            raise self.model.peer.error(f"llama_decode returned {status}")
        self.lib.llama_synchronize(self.handle)

    def rows(self, n: int) -> Floats:
        """Logits of the last batch's `n` outputs, a copy of shape [n, n_vocab]."""
        data = self.lib.llama_get_logits(self.handle)
        return np.ctypeslib.as_array(data, (n, self.model.n_vocab)).copy()

    def logits(self, tokens: Sequence[int]) -> Floats:
        """Logits at every position of one sequence: [n_tokens, n_vocab]."""
        self.clear()
        step = self.options.n_batch
        parts = []
        for at in range(0, len(tokens), step):
            part = tokens[at : at + step]
            self.decode(part, at, outputs=np.ones(len(part)))
            parts.append(self.rows(len(part)))
        return np.concatenate(parts)

    def greedy(self, tokens: Sequence[int], n: int) -> list[int]:
        """Up to `n` most probable tokens after `tokens`, without the one that ends."""
        return list(self.stream(tokens, n))

    def stream(self, tokens: Sequence[int], n: int) -> Iterator[int]:
        """The same, one token at a time."""
        self.clear()
        self.prefill(tokens)
        for position in range(len(tokens), len(tokens) + n):
            token = int(self.rows(1)[0].argmax())
            if self.model.is_end(token):
                return
            yield token
            self.decode([token], position)

    def prefill(self, tokens: Sequence[int] | npt.NDArray[Any], start: int = 0) -> None:
        """Decode any number of tokens of sequence 0 in batches."""
        step = self.options.n_batch
        for at in range(0, len(tokens), step):
            self.decode(tokens[at : at + step], start + at)

    def embed(self, tokens: Sequence[int]) -> Floats:
        """Embeddings: [n_tokens, n_embd] without pooling, else [n_embd]. Not normalized."""
        self.clear()
        self.decode(tokens, outputs=np.ones(len(tokens)))
        n_embd = self.lib.llama_model_n_embd_out(self.model.handle)
        if self.lib.llama_pooling_type(self.handle) == abi.POOLING["none"]:
            data = self.lib.llama_get_embeddings(self.handle)
            shape: tuple[int, ...] = (len(tokens), n_embd)
        else:
            data, shape = self.lib.llama_get_embeddings_seq(self.handle, 0), (n_embd,)
        if not data:
            raise self.model.peer.error("llama.cpp gave no embeddings")
        return np.ctypeslib.as_array(data, shape).copy()


if __name__ == "__main__":
    from peer_cli import main

    main()
