"""Big-endian tensor data to little-endian blocks and back: each number of a block is turned around.

Possible only where a block is made of whole numbers and single bytes. The other types (q5_0, q5_1,
most iq types) pack fields across bytes in an order that depends on the machine which wrote them, so
they are refused. The reversible set is that of gguf-py's gguf_convert_endian plus its like.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_SCALE, _SCALE_MIN = ("d", "u2"), ("dm", "u2", 2)

# Only what a swap must know: where numbers of more than one byte lie. The rest is opaque bytes.
_BLOCKS: dict[int, Any] = {
    0: "u4",  # f32
    1: "u2",  # f16
    2: [_SCALE, ("q", "V16")],  # q4_0
    3: [_SCALE_MIN, ("q", "V16")],  # q4_1
    8: [_SCALE, ("q", "V32")],  # q8_0
    9: [_SCALE_MIN, ("q", "V32")],  # q8_1
    10: [("q", "V80"), _SCALE_MIN],  # q2_K
    12: [_SCALE_MIN, ("q", "V140")],  # q4_K
    13: [_SCALE_MIN, ("q", "V172")],  # q5_K
    14: [("q", "V208"), _SCALE],  # q6_K
    15: [("d", "u4"), ("q", "V256"), ("sums", "u2", 16)],  # q8_K
    20: [_SCALE, ("q", "V16")],  # iq4_nl
    24: "u1",  # i8
    25: "u2",  # i16
    26: "u4",  # i32
    27: "u8",  # i64
    28: "u8",  # f64
    30: "u2",  # bf16
    34: [("q", "V52"), _SCALE],  # tq1_0
    35: [("q", "V64"), _SCALE],  # tq2_0
    39: "V17",  # mxfp4
    40: "V36",  # nvfp4
    41: [_SCALE, ("q", "V16")],  # q1_0
    42: [_SCALE, ("q", "V16")],  # q2_0
}


def swappable(type_id: int) -> np.dtype[Any] | None:
    """The block layout by which tensors of this type can be swapped; None if they cannot."""
    layout = _BLOCKS.get(type_id)
    return None if layout is None else np.dtype(layout)


def swap_blocks(data: np.ndarray[Any, Any], block: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Turn around every number in blocks of this numpy type. uint8 [n] in, a new uint8 [n] out."""
    return data.view(block).byteswap().view(np.uint8)
