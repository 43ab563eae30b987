"""llama.cpp's own samplers through ctypes: the truth for whole chains."""

from __future__ import annotations

import ctypes as C
from collections.abc import Callable, Iterator

import numpy as np
import pytest


class TokenData(C.Structure):
    _fields_ = (("id", C.c_int32), ("logit", C.c_float), ("p", C.c_float))


class TokenArray(C.Structure):
    _fields_ = (
        ("data", C.POINTER(TokenData)),
        ("size", C.c_size_t),
        ("selected", C.c_int64),
        ("sorted", C.c_bool),
    )


class Bias(C.Structure):
    _fields_ = (("token", C.c_int32), ("bias", C.c_float))


I, U, F, Z, P = C.c_int32, C.c_uint32, C.c_float, C.c_size_t, C.c_void_p
MAKERS = {
    "greedy": [], "dist": [U], "top_k": [I], "top_p": [F, Z], "min_p": [F, Z], "typical": [F, Z],
    "temp": [F], "temp_ext": [F, F, F], "xtc": [F, F, Z, U], "top_n_sigma": [F],
    "mirostat": [I, U, F, F, I], "mirostat_v2": [U, F, F], "penalties": [I, I, F, F, F],
    "dry": [P, F, F, I, I, P, Z], "adaptive_p": [F, F, U], "logit_bias": [I, I, P],
}  # fmt: skip
RECORD = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])


class PeerChain:
    """A list of llama.cpp samplers, each (name as in llama_sampler_init_NAME, arguments)."""

    def __init__(self, lib: C.CDLL, steps: list[tuple]) -> None:
        self.lib = lib
        lib.llama_sampler_apply.argtypes = [P, C.POINTER(TokenArray)]
        lib.llama_sampler_accept.argtypes = [P, I]
        lib.llama_sampler_free.argtypes = lib.llama_sampler_reset.argtypes = [P]
        self.handles = [self._make(name, args) for name, *args in steps]

    def _make(self, name: str, args: list) -> int:
        init = getattr(self.lib, f"llama_sampler_init_{name}")
        init.restype, init.argtypes = P, MAKERS[name]
        return init(*args)

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """The candidates that are left, RECORD [n]; `self.token` is the chosen one or None."""
        data = np.zeros(len(logits), RECORD)
        data["id"], data["logit"] = np.arange(len(logits)), logits
        array = TokenArray(data.ctypes.data_as(C.POINTER(TokenData)), len(data), -1, False)
        for handle in self.handles:
            self.lib.llama_sampler_apply(handle, C.byref(array))
        start = C.addressof(array.data.contents) - data.ctypes.data
        left = data[start // RECORD.itemsize :][: array.size].copy()
        self.token = int(left["id"][array.selected]) if array.selected >= 0 else None
        return left

    def accept(self, token: int) -> None:
        for handle in self.handles:
            self.lib.llama_sampler_accept(handle, token)

    def close(self) -> None:
        for handle in self.handles:
            self.lib.llama_sampler_free(handle)


@pytest.fixture
def peer_chain(peer: object) -> Iterator[Callable[..., PeerChain]]:
    """Makes chains of llama.cpp's samplers: peer_chain(("top_k", 40), ("dist", 7))."""
    made: list[PeerChain] = []

    def make(*steps: tuple) -> PeerChain:
        made.append(PeerChain(peer.lib, list(steps)))
        return made[-1]

    yield make
    for chain in made:
        chain.close()
