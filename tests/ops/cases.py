"""The table of op cases: one list for correctness on every backend, and for whoever measures speed.

`CASES` is all of it; `of("mul_mat")` what concerns one op.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from llamapy.graph.op import registry
from llamapy.quants import codec
from tests.ops.case import Case, Src

EXACT, FLOAT, ROUGH = 0.0, 1e-7, 1e-5  # ROUGH: a 16-bit number is between
ROUNDED = 1e-4  # to q8_0
QUANTIZED = 2e-4  # activations of 8 bits; ggml's own tests allow 5e-4
LARGE_CHANNELS = 2e-5  # where some are large: 8 bits, and more where that is too coarse
NOT_WEIGHTS = ("q8_1", "q8_K", "f64", "i8", "i16", "i32", "i64")
PRODUCT = {"f32": FLOAT, "f16": ROUGH, "bf16": ROUGH}  # of mul_mat by type, QUANTIZED otherwise

COLUMNS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 33)
KV_TYPES = {"f32": FLOAT, "f16": ROUGH, "bf16": ROUGH, "q8_0": QUANTIZED}
UNARY = ("silu", "gelu", "gelu_erf", "gelu_quick", "relu", "relu_sqr", "tanh", "sigmoid", "neg")
UNARY += ("exp", "softplus", "sqr")


def weights() -> list[str]:
    """Every type that a matrix may have."""
    return [name for name in codec.registry() if name not in NOT_WEIGHTS]


def f32(*ne: int, **how: object) -> Src:
    return Src("f32", ne, **how)  # type: ignore[arg-type]


def rows_of(kind: str, n_blocks: int) -> int:
    """A row length: that many blocks, or plain numbers in 32s."""
    return n_blocks * max(32, codec.get(kind).n_values)


def elementwise() -> Iterator[Case]:
    for op in UNARY:
        yield Case(op, (f32(37, 5, 2, 3, high=3.0),))
        yield Case(op, (f32(128, 3, high=3.0),))
        yield Case(op, (f32(32, 3, 4, base=(40, 3, 5), high=3.0),))
    for op in ("sqrt", "log"):
        yield Case(op, (f32(70, 3, 2, fill="uniform", low=0.01, high=9),))
    yield Case("exp", (f32(64, fill="uniform", low=-80, high=0),))
    yield Case("silu", (f32(64, fill="uniform", low=-200, high=200),))
    yield Case("softplus", (f32(64, fill="uniform", low=-60, high=60),))
    for op in ("add", "sub", "mul", "div"):
        other = {"fill": "uniform", "low": 0.5, "high": 2.0}
        for ne in ((37, 5, 2, 3), (37,), (37, 5), (1, 5), (1,), (37, 1, 2), (1, 5, 1, 3)):
            yield Case(op, (f32(37, 5, 2, 3), f32(*ne, **other)))
        yield Case(op, (f32(64, 6), f32(32, 3, **other)))
        yield Case(op, (f32(64, 5, base=(80, 7)), f32(64, 5, base=(64, 9), **other)))
        yield Case(op, (f32(576, 1), f32(576, **other)))
        yield Case(op, (f32(16, 4, 5, axes=(0, 2, 1, 3)), f32(16, 5, 4, **other)))
    for ne in ((37, 5, 2), (576,), (1, 3)):
        yield Case("scale", (f32(*ne),), {"s": 0.125})
        yield Case("scale", (f32(*ne),), {"s": -1.5, "b": 0.75})
        yield Case("clamp", (f32(*ne),), {"lo": -0.5, "hi": 0.25})
    yield Case("clamp", (f32(50, 2),), {"lo": 0.1, "hi": math.inf})
    for op in ("swiglu", "geglu", "geglu_erf", "geglu_quick", "reglu"):
        yield Case(op, (f32(96, 5, 2), f32(96, 5, 2)))
        yield Case(op, (f32(33, 3, base=(66, 3)), f32(33, 3, base=(50, 3))))
        yield Case(op, (f32(74, 4),))
        yield Case(op, (f32(74, 4),), {"swapped": True})


def rows() -> Iterator[Case]:
    for op in ("rms_norm", "norm", "l2_norm"):
        for eps in (1e-6, 1e-5, 0.1):
            yield Case(op, (f32(576, 3),), {"eps": eps})
        yield Case(op, (f32(37, 5, 2, 3, low=1.0),))
        yield Case(op, (f32(64, 3, 5, base=(192, 3, 5)),))
        yield Case(op, (f32(64, 3, 5, axes=(0, 2, 1, 3)),))
        yield Case(op, (f32(8, 2, high=1e-3),), {"eps": 1e-5})
    for size in (16, 32, 64, 256):
        yield Case("hadamard", (f32(2 * size, 3, 5),), {"size": size})
        yield Case("hadamard", (f32(size, 3, 5, base=(3 * size, 3, 5)),), {"size": size})
        yield Case("hadamard", (f32(size, 3, 5, axes=(0, 2, 1, 3)),), {"size": size})
    for op in ("sum_rows", "mean"):
        yield Case(op, (f32(37, 5, 2, 3, low=0.5),))
        yield Case(op, (f32(1000, 2, low=0.5),))
        yield Case(op, (f32(20, 3, base=(32, 4), low=0.5),))
    for n in (1, 7, 32, 1000):
        yield Case("argmax", (f32(n, 5),), nmse=EXACT)
    yield Case("argmax", (f32(50, 4, fill="ties", low=0, high=5),), nmse=EXACT)
    for fill in ("normal", "ties"):
        x = f32(61, 3, 2, fill=fill, high=8.0)
        yield Case("argsort", (x,), {"order": "asc"}, EXACT)
        yield Case("argsort", (x,), {"order": "desc"}, EXACT)
        for k in (1, 2, 8, 61):
            yield Case("top_k", (x,), {"k": k}, EXACT)
    for n_past in (0, 3):
        yield Case("diag_mask_inf", (f32(9, 6, 2),), {"n_past": n_past})


def moving() -> Iterator[Case]:
    for kind in ("f32", "f16", "bf16", "i32"):
        how = {"fill": "ids", "high": 1000.0} if kind == "i32" else {}
        yield Case("cont", (Src(kind, (32, 4, 5), axes=(0, 2, 1, 3), **how),), nmse=EXACT)
        yield Case("cont", (Src(kind, (33, 4, 5), axes=(1, 0, 2, 3), **how),), nmse=EXACT)
        yield Case("cont", (Src(kind, (16, 3), base=(20, 6), **how),), nmse=EXACT)
        yield Case(
            "concat", (Src(kind, (8, 3, 2), **how), Src(kind, (8, 5, 2), **how)), {"dim": 1}, EXACT
        )
    for dim in range(4):
        other = [7, 3, 2, 2]
        other[dim] = 4
        yield Case("concat", (f32(7, 3, 2, 2), f32(*other)), {"dim": dim}, EXACT)
    for start in ("f32", "f16", "bf16"):
        for target in ("f32", "f16", "bf16"):
            yield Case("cast", (Src(start, (33, 5, 2)),), {"kind": target}, EXACT)
            yield Case(
                "cast", (Src(start, (32, 5, 2), axes=(0, 2, 1, 3)),), {"kind": target}, EXACT
            )
    yield Case("cast", (f32(64, 5),), {"kind": "q8_0"}, ROUNDED)
    yield Case("cast", (Src("q8_0", (64, 5)),), {"kind": "f32"}, EXACT)
    yield Case("cast", (Src("i32", (33, 2), fill="ids", high=5000),), {"kind": "f32"}, EXACT)
    for kind, nmse in (("f32", EXACT), ("f16", EXACT), ("bf16", EXACT), ("q8_0", ROUNDED)):
        yield Case("cpy", (f32(64, 3, 4), Src(kind, (64, 3, 4))), nmse=nmse)
        yield Case("cpy", (f32(32, 6), Src(kind, (64, 3), base=(64, 9))), nmse=nmse)
        ids = Src("i64", (5,), fill="distinct", high=19)
        yield Case("set_rows", (Src(kind, (64, 19)), f32(64, 5), ids), nmse=nmse)
        grouped = Src("i32", (5, 2), fill="distinct", high=19)
        table, x = Src(kind, (64, 19, 4)), f32(64, 5, 4, base=(64, 7, 4))
        yield Case("set_rows", (table, x, grouped), nmse=nmse)
    yield Case("repeat", (f32(7, 1, 2),), {"ne": (21, 4, 2)}, EXACT)
    yield Case("repeat", (f32(1, 3),), {"ne": (64, 3, 5, 2)}, EXACT)


def tables() -> Iterator[Case]:
    ids = Src("i32", (7,), fill="ids", high=23)
    for kind in weights():
        yield Case("get_rows", (Src(kind, (rows_of(kind, 2), 23), weight=True), ids), nmse=FLOAT)
    yield Case("get_rows", (Src("i32", (3, 23), fill="ids", high=99), ids), nmse=EXACT)
    many = Src("i32", (4, 3, 2), fill="ids", high=6)
    yield Case("get_rows", (f32(5, 6, 3, 2), many), nmse=EXACT)
    yield Case("get_rows", (f32(1, 6, 3, 2), many), nmse=EXACT)
    yield Case(
        "get_rows", (f32(40, 6, base=(64, 6)), Src("i32", (4,), fill="ids", high=6)), nmse=EXACT
    )


def products() -> Iterator[Case]:
    for kind in weights():
        nmse = PRODUCT.get(kind, QUANTIZED)
        for m in COLUMNS:
            k = rows_of(kind, 1 + m % 3)
            yield Case("mul_mat", (Src(kind, (k, 37), weight=True), f32(k, m)), nmse=nmse)
        k = rows_of(kind, 1)
        yield Case("mul_mat", (Src(kind, (k, 16), weight=True), f32(k, 512)), nmse=nmse)
        yield Case("mul_mat", (Src(kind, (k, 9, 2), weight=True), f32(k, 3, 4, 2)), nmse=nmse)
        yield from _experts(kind, nmse)
    for kind in ("f32", "f16", "bf16", "q4_0", "q4_1", "q8_0", "q4_K", "q6_K"):
        nmse = PRODUCT.get(kind, QUANTIZED)
        for k in (32, 64, 256, 576, 1536, 2048):
            for n, m in ((1, 1), (8, 2), (33, 5), (257, 1), (64, 40)):
                if k % codec.get(kind).n_values == 0:
                    yield Case("mul_mat", (Src(kind, (k, n), weight=True), f32(k, m)), nmse=nmse)
    yield Case(
        "mul_mat", (Src("q8_0", (576, 50), weight=True), f32(576, 6, base=(600, 8))), nmse=QUANTIZED
    )
    for k in (1, 7, 31, 33, 100):
        yield Case("mul_mat", (f32(k, 5), f32(k, 3)), nmse=FLOAT)
        yield Case("mul_mat", (Src("f16", (k, 5)), f32(k, 3)), nmse=ROUGH)
    for kind in ("f32", "f16"):  # attention spelled out: grouped heads of a strided cache
        nmse = PRODUCT[kind]
        keys = Src(kind, (64, 3, 50), base=(64, 3, 70), axes=(0, 2, 1, 3))
        for n_q in (1, 5):
            queries = f32(64, 9, n_q, axes=(0, 2, 1, 3))
            yield Case("mul_mat", (keys, queries), nmse=nmse)
            yield Case("mul_mat", (Src(kind, (50, 64, 3)), f32(50, n_q, 9)), nmse=nmse)


def channels() -> Iterator[Case]:
    for kind in weights():
        nmse = min(PRODUCT.get(kind, LARGE_CHANNELS), LARGE_CHANNELS)
        k = 512 if codec.get(kind).n_values <= 512 else rows_of(kind, 1)
        for m in (9, 42):
            large = f32(k, m, 2, fill="channels", high=30.0)
            yield Case("mul_mat", (Src(kind, (k, 21), weight=True), large), nmse=nmse)
        # Channels beyond what a second digit holds; blocks much smaller than others of their row.
        larger = f32(k, 9, fill="channels", high=1e5)
        yield Case("mul_mat", (Src(kind, (k, 21), weight=True), larger), nmse=nmse)
        if 1 < codec.get(kind).n_values <= 256:
            k = 12 * codec.get(kind).n_values
            uneven = Src(kind, (k, 21), fill="sizes", weight=True)
            yield Case("mul_mat", (uneven, f32(k, 9)), nmse=PRODUCT.get(kind, QUANTIZED))
        # Neighbours all at the end of the range: sums of their products are as large as they get.
        full = f32(k, 9, fill="uniform", low=0.9, high=1.0)
        nmse = PRODUCT.get(kind, QUANTIZED)
        yield Case("mul_mat", (Src(kind, (k, 21), weight=True), full), nmse=nmse)


def _experts(kind: str, nmse: float) -> Iterator[Case]:
    k = rows_of(kind, 1)
    experts = Src(kind, (k, 11, 8), weight=True)
    for n_tokens in (1, 5):
        ids = Src("i32", (3, n_tokens), fill="distinct", high=8)
        yield Case("mul_mat_id", (experts, f32(k, 1, n_tokens), ids), nmse=nmse)
    yield Case("mul_mat_id", (experts, f32(k, 3, 5), ids), nmse=nmse)


def routed() -> Iterator[Case]:
    ids = Src("i32", (3, 40), fill="distinct", high=8)
    for kind in ("f32", "q4_K", "q8_0"):
        experts = Src(kind, (512, 33, 8), weight=True)
        yield Case("mul_mat_id", (experts, f32(512, 1, 40), ids), nmse=PRODUCT.get(kind, QUANTIZED))
    view = Src("i32", (2, 5), fill="distinct", high=8, base=(8, 5))
    yield Case("mul_mat_id", (f32(32, 9, 8, weight=True), f32(32, 2, 5), view))
    yield Case("add_id", (f32(37, 3, 40), f32(37, 8), ids))
    yield Case("add_id", (f32(37, 2, 5), f32(37, 8), view))
    for n in (3, 37, 64, 576):
        yield Case("moments", (f32(n, 33, low=0.5),))
    yield Case("moments", (f32(64, 3, 5, axes=(0, 2, 1, 3)),))
    yield Case("moments", (f32(48, 1, 40), ids), {"n_mat": 8})
    yield Case("moments", (f32(48, 3, 40), ids), {"n_mat": 8})


def positions() -> Iterator[Case]:
    for mode in ("norm", "neox"):
        for head, n_dims in ((64, 64), (128, 128), (80, 80), (96, 32), (40, 40), (2, 2)):
            x, pos = f32(head, 3, 5), Src("i32", (5,), fill="count", low=11)
            yield Case("rope", (x, pos), {"n_dims": n_dims, "mode": mode})
        far = Src("i32", (2,), fill="count", low=3000)
        yield Case(
            "rope", (f32(64, 2, 2), far), {"n_dims": 64, "mode": mode, "freq_base": 1e6}, 1e-6
        )
        factors = f32(32, fill="uniform", low=1.0, high=8.0)
        fields = {"n_dims": 64, "mode": mode, "freq_base": 500000.0}
        yield Case("rope", (f32(64, 3, 5), pos, factors), fields)
        linear = {"n_dims": 64, "mode": mode, "freq_scale": 0.25, "attn_factor": 1.5}
        yield Case("rope", (f32(64, 3, 5), pos, None), linear)
        yarn = {"n_ctx_orig": 4096, "freq_scale": 0.125, "ext_factor": 1.0, "attn_factor": 0.9}
        yield Case("rope", (f32(128, 2, 5), pos), {"n_dims": 128, "mode": mode, **yarn})
        part = {"ext_factor": 0.5, "beta_fast": 16.0, "beta_slow": 2.0}
        yield Case("rope", (f32(128, 2, 5), pos), {"n_dims": 96, "mode": mode, **yarn, **part})
        strided = f32(64, 3, 5, base=(64, 9, 5))
        yield Case("rope", (strided, pos), {"n_dims": 64, "mode": mode})
        yield Case(
            "rope", (f32(64, 1, 1), Src("i32", (1,), fill="count")), {"n_dims": 64, "mode": mode}
        )


def attention() -> Iterator[Case]:
    for n_kv, n_q in ((1, 1), (32, 1), (33, 5), (256, 7)):
        x = f32(n_kv, n_q, 4, high=4.0)
        yield Case("soft_max", (x,))
        yield Case("soft_max", (x, None, None), {"scale": 0.125})
        sinks = f32(4)
        for kind in ("f32", "f16"):
            mask = Src(kind, (n_kv, n_q), fill="causal")
            yield Case("soft_max", (x, mask), {"scale": 0.125})
            alibi = Src(kind, (n_kv, n_q), fill="distance")
            yield Case("soft_max", (x, alibi), {"scale": 0.5, "max_bias": 8.0})
            yield Case("soft_max", (x, mask, sinks), {"scale": 0.5})
        yield Case("soft_max", (x, None, sinks))
    holes = Src("f16", (40, 16), fill="holes", high=0.3)
    yield Case("soft_max", (f32(40, 16, 6), holes), {"max_bias": 4.0, "scale": 0.7})
    wide = Src("f32", (40, 20, 2, 3), fill="holes", high=0.3)
    yield Case("soft_max", (f32(40, 16, 6, 3), wide), {"scale": 0.7})
    yield from _flash()


def _flash() -> Iterator[Case]:
    for d, dv in (
        (32, 32),
        (40, 40),
        (64, 64),
        (80, 80),
        (96, 96),
        (128, 128),
        (192, 128),
        (256, 256),
    ):
        for kind, nmse in KV_TYPES.items():
            if d % codec.get(kind).n_values == 0 == dv % codec.get(kind).n_values:
                for n_q, n_kv in ((1, 65), (9, 100)):
                    yield _flash_case((d, dv), (kind, kind), (n_q, n_kv), nmse, scale=d**-0.5)
    for kv in (("f16", "q8_0"), ("q8_0", "f16"), ("f32", "f16")):
        yield _flash_case((64, 64), kv, (3, 100), QUANTIZED, scale=0.125)
    for kind, nmse in KV_TYPES.items():
        one = {"scale": 0.125, "softcap": 20.0}
        yield _flash_case((64, 64), (kind, kind), (5, 170), nmse, fill="causal", window=13, **one)
        yield _flash_case(
            (64, 64), (kind, kind), (33, 170), nmse, fill="holes", window=0.3, scale=0.2
        )
        yield _flash_case(
            (64, 64), (kind, kind), (4, 50), nmse, fill="distance", scale=0.2, max_bias=8.0
        )
        yield _flash_case((64, 64), (kind, kind), (4, 50), nmse, sinks=True, scale=0.2)
        # A few queries against several blocks of keys, each for all the heads that share them.
        two = (kind, kind)
        yield _flash_case((64, 64), two, (2, 700), nmse, sinks=True, scale=0.2, heads=(8, 2))
        yield _flash_case((64, 64), two, (3, 530), nmse, fill="holes", window=0.3, **one)
        yield _flash_case((64, 64), two, (4, 600), nmse, fill="distance", scale=0.2, max_bias=8.0)
        yield _flash_case((128, 96), two, (2, 257), nmse, window=13, scale=0.1, heads=(6, 1))
    yield _flash_case((64, 64), ("f16", "f16"), (64, 300), ROUGH, scale=0.125, heads=(9, 3))
    yield _flash_case((64, 64), ("f16", "f16"), (1, 1100), ROUGH, scale=0.125, heads=(9, 3))
    for size in (2, 7, 34):  # heads that no vector divides
        yield _flash_case((size, size), ("f16", "f16"), (9, 100), ROUGH, scale=0.3)
    yield _flash_case((40, 72), ("f16", "f16"), (1, 600), ROUGH, scale=0.2, heads=(4, 1))
    yield _flash_case((64, 64), ("f32", "f32"), (5, 5), FLOAT, fill=None, scale=0.125, heads=(4, 4))
    yield _flash_case((64, 64), ("f16", "f16"), (7, 64), ROUGH, scale=0.3, heads=(8, 1))


def _flash_case(
    sizes: tuple[int, int],
    kinds: tuple[str, str],
    counts: tuple[int, int],
    nmse: float,
    *,
    heads: tuple[int, int] = (6, 2),
    fill: str | None = "causal",
    window: float = 1.0,
    sinks: bool = False,
    **fields: float,
) -> Case:
    """Queries as rope leaves them, K and V as they lie in a cache: [size, heads, cells], turned."""
    (d, dv), (n_q, n_kv), cells = sizes, counts, counts[1] + 24
    turned = (0, 2, 1, 3)
    q = f32(d, heads[0], n_q, axes=turned)
    k = Src(kinds[0], (d, heads[1], n_kv), base=(d, heads[1], cells), axes=turned)
    v = Src(kinds[1], (dv, heads[1], n_kv), base=(dv, heads[1], cells), axes=turned)
    mask = None if fill is None else Src("f16", (n_kv, n_q), fill=fill, high=window)
    sink = (f32(heads[0], high=2.0),) if sinks else ()
    return Case("flash_attn", (q, k, v, mask, *sink), dict(fields), nmse)


CASES: list[Case] = [
    *elementwise(),
    *rows(),
    *moving(),
    *tables(),
    *products(),
    *channels(),
    *routed(),
    *positions(),
    *attention(),
]


def of(op: str) -> list[Case]:
    return [case for case in CASES if case.op == op]


def in_place() -> list[tuple[Case, int]]:
    """(case, number of the source whose place the result takes), as the allocator does it."""
    found = []
    for case in CASES:
        for i in registry()[case.op].inplace:
            source, first = case.src[i] if i < len(case.src) else None, case.src[0]
            plain = source is not None and source.base is source.axes is None
            if plain and first is not None and source.ne == first.ne and not _halves(case):
                found.append((case, i))
    return found


def _halves(case: Case) -> bool:
    """A gated unit whose one source is twice as wide as the result."""
    return len(case.src) == 1 and len(registry()[case.op].inplace) == 2
