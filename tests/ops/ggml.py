"""The same op by ggml itself (libggml-python through ctypes): another truth than ours."""

from __future__ import annotations

import ctypes as C
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamapy.backend.reference.values import decode
from llamapy.graph.tensor import four
from llamapy.quants import codec
from tests.ops.case import Case, Src

Array = np.ndarray[Any, Any]
UNARY = {"neg": 2, "tanh": 4, "relu": 6, "sigmoid": 7, "gelu": 8, "gelu_quick": 9, "silu": 10}
UNARY |= {"exp": 13, "softplus": 15, "gelu_erf": 16}
GLU = {"reglu": 0, "geglu": 1, "swiglu": 2, "geglu_erf": 4, "geglu_quick": 5}
WORK = 96 << 20


class _Params(C.Structure):
    """ggml_init_params."""

    _fields_ = [("mem_size", C.c_size_t), ("mem_buffer", C.c_void_p), ("no_alloc", C.c_bool)]


class Ggml:
    """Runs one case at a time in a context of its own."""

    def __init__(self, folder: Path) -> None:
        self.lib = C.CDLL(str(folder / "libggml-base.so"), C.RTLD_GLOBAL)
        self.cpu = C.CDLL(str(folder / "libggml-cpu.so"))
        self.lib.ggml_init.argtypes = [_Params]
        for name in ("ggml_init", "ggml_new_graph"):
            getattr(self.lib, name).restype = C.c_void_p
        self.memory = np.zeros(WORK, np.uint8)

    def call(self, name: str, *args: Any) -> Any:
        """ctx-taking functions that give a tensor; Python ints are int32, floats float."""
        function = getattr(self.lib, f"ggml_{name}")
        function.restype = C.c_void_p
        return C.c_void_p(
            function(self.ctx, *(C.c_float(a) if isinstance(a, float) else a for a in args))
        )

    def run(self, case: Case, drawn: Sequence[Array | None], kind: str, ne: Sequence[int]) -> Array:
        """The numbers of the result, whose type and sizes we know."""
        params = _Params(WORK, self.memory.ctypes.data, False)
        self.ctx = C.c_void_p(self.lib.ggml_init(params))
        src = [None if s is None else self._source(s, d) for s, d in zip(case.src, drawn)]
        node = OPS[case.op](self, case, src)
        graph = C.c_void_p(self.lib.ggml_new_graph(self.ctx))
        self.lib.ggml_build_forward_expand(graph, node)
        assert self.cpu.ggml_graph_compute_with_ctx(self.ctx, graph, 1) == 0
        codec_ = codec.get(kind)
        blocks = np.empty((*four(ne)[:0:-1], ne[0] // codec_.n_values), codec_.block)
        C.memmove(blocks.ctypes.data, self._data(node), blocks.nbytes)
        self.lib.ggml_free(self.ctx)
        return np.array(decode(codec_, blocks))

    def _data(self, tensor: Any) -> int:
        self.lib.ggml_get_data.restype = C.c_void_p
        return int(self.lib.ggml_get_data(tensor))

    def _source(self, src: Src, drawn: Array) -> Any:
        kind, ne = codec.get(src.kind), four(src.base or src.ne)
        tensor = self.call("new_tensor_4d", kind.type_id, *map(C.c_int64, ne))
        C.memmove(self._data(tensor), np.ascontiguousarray(drawn).ctypes.data, drawn.nbytes)
        if src.base is not None:
            nb1 = kind.row_bytes(ne[0])
            nb = [C.c_size_t(b) for b in (nb1, nb1 * ne[1], nb1 * ne[1] * ne[2])]
            sizes = map(C.c_int64, four(src.ne))
            tensor = self.call("view_4d", tensor, *sizes, *nb, C.c_size_t(0))
        return tensor if src.axes is None else self.call("permute", tensor, *src.axes)


def _rope(g: Ggml, case: Case, src: Sequence[Any]) -> Any:
    f = {"n_ctx_orig": 0, "freq_base": 10000.0, "freq_scale": 1.0, "ext_factor": 0.0}
    f |= {"attn_factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0, **case.fields}
    x, pos, factors = (*src, None)[:3]
    mode = {"norm": 0, "neox": 2}[f.pop("mode")]
    return g.call("rope_ext", x, pos, factors, f.pop("n_dims"), mode, *f.values())


def _soft_max(g: Ggml, case: Case, src: Sequence[Any]) -> Any:
    x, mask, sinks = (*src, None, None)[:3]
    scale, max_bias = case.fields.get("scale", 1.0), case.fields.get("max_bias", 0.0)
    node = g.call("soft_max_ext", x, mask, scale, max_bias)
    g.lib.ggml_soft_max_add_sinks(node, sinks)
    return node


def _flash_attn(g: Ggml, case: Case, src: Sequence[Any]) -> Any:
    q, k, v, mask, sinks = (*src, None, None)[:5]
    numbers = [case.fields.get(name, 0.0) for name in ("scale", "max_bias", "softcap")]
    node = g.call("flash_attn_ext", q, k, v, mask, *map(float, numbers))
    g.lib.ggml_flash_attn_ext_add_sinks(node, sinks)
    return node


def _glu(g: Ggml, case: Case, src: Sequence[Any]) -> Any:
    if len(src) == 2:
        return g.call("glu_split", *src, GLU[case.op])
    return g.call("glu", *src, GLU[case.op], C.c_bool(case.fields.get("swapped", False)))


def _scale(g: Ggml, case: Case, src: Sequence[Any]) -> Any:
    return g.call("scale_bias", *src, float(case.fields["s"]), float(case.fields.get("b", 0)))


def _norm(g: Ggml, case: Case, src: Sequence[Any]) -> Any:
    return g.call(case.op, *src, float(case.fields.get("eps", 1e-5)))


def _plain(name: str, *fields: str, kind: Callable[[Any], Any] = float) -> Callable[..., Any]:
    return lambda g, case, src: g.call(name, *src, *(kind(case.fields[f]) for f in fields))


OPS: dict[str, Callable[[Ggml, Case, Sequence[Any]], Any]] = {
    **{op: lambda g, case, src: g.call("unary", *src, UNARY[case.op]) for op in UNARY},
    **dict.fromkeys(GLU, _glu),
    **{op: _plain(op) for op in ("sqr", "sqrt", "log", "add", "sub", "mul", "div", "cont", "cpy")},
    **{op: _plain(op) for op in ("sum_rows", "mean", "argmax", "get_rows", "mul_mat")},
    **{op: _plain(op) for op in ("mul_mat_id", "add_id")},
    **dict.fromkeys(("rms_norm", "norm", "l2_norm"), _norm),
    "relu_sqr": lambda g, case, src: g.call("sqr", g.call("unary", *src, UNARY["relu"])),
    "scale": _scale,
    "clamp": _plain("clamp", "lo", "hi"),
    "rope": _rope,
    "soft_max": _soft_max,
    "flash_attn": _flash_attn,
    "set_rows": _plain("set_rows"),
    "argsort": lambda g, case, src: g.call("argsort", *src, int(case.fields["order"] == "desc")),
    "top_k": _plain("top_k", "k", kind=int),
    "diag_mask_inf": _plain("diag_mask_inf", "n_past", kind=int),
    "concat": _plain("concat", "dim", kind=int),
    "cast": lambda g, case, src: g.call("cast", *src, codec.get(case.fields["kind"]).type_id),
    "repeat": lambda g, case, src: g.call(
        "repeat_4d", *src, *map(C.c_int64, four(case.fields["ne"]))
    ),
}


def connect() -> Ggml:
    """ggml; where libggml-python is not installed for this system, the test skips itself."""
    spec = find_spec("libggml")
    places = spec.submodule_search_locations if spec is not None else None
    found = sorted(Path(places[0]).rglob("libggml-cpu.so")) if places else []
    if not found:
        pytest.skip("libggml-python is not installed for this system")
    return Ggml(found[0].parent)
