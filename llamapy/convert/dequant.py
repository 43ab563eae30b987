"""Checkpoints whose weights are quantized already: tensors that give their float32 values.

FP8 with scales (DeepSeek's blocks, one a tensor or row), compressed-tensors (float, int, packed),
GPTQ and AWQ. Layouts: the formats' own documents, and llama.cpp's conversion/base.py for FP8, GPTQ
and compressed-tensors. What is not documented is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llamapy.convert.plan import Stored
from llamapy.convert.safetensors import to_floats
from llamapy.core.errors import ModelError
from llamapy.gguf.limits import shown

Array = np.ndarray[Any, Any]
Sources = dict[str, Stored]

KNOWN = "fp8, compressed-tensors, gptq and awq"


def sources(tensors: Mapping[str, Stored], config: Mapping[str, Any], where: str) -> Sources:
    """The tensors by name with quantized ones replaced by their values. ModelError names a format
    that is not known."""
    quantization = config.get("quantization_config") or {}
    method = quantization.get("quant_method")
    if not quantization or method is None:
        return dict(tensors)
    if method in ("fp8", "fbgemm_fp8"):
        return _fp8(tensors, quantization.get("weight_block_size"), where)
    if method == "compressed-tensors":
        return _compressed(tensors, quantization, where)
    if method in ("gptq", "awq"):
        return _packed_columns(tensors, quantization, str(method), where)
    if method == "modelopt" and str(quantization.get("quant_algo", "FP8")) == "FP8":
        return _fp8(tensors, None, where)
    raise ModelError(
        f"{where}: weights are quantized by {shown(str(method))}, which is not supported",
        hint=f"known are {KNOWN}; convert the original model, or save it in 16 bits first",
    )


@dataclass(frozen=True)
class _Virtual:
    """A tensor that is worked out from others."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "F32"

    def read(self, first: int = 0, last: int | None = None) -> Array:
        """Rows first..last, float32; all of them in `shape`."""
        end = self.shape[0] if last is None else last
        return self.rows(first, end)

    def rows(self, first: int, last: int) -> Array:
        raise NotImplementedError


# -- one scale for each tensor, row or block


@dataclass(frozen=True)
class _Scaled(_Virtual):
    """values * scale; `block` rows and columns share one (0: the whole axis does)."""

    values: Any = None
    scale: Any = None
    block: tuple[int, int] = (0, 0)
    inverse: bool = False

    def rows(self, first: int, last: int) -> Array:
        width = self.shape[-1]
        values = to_floats(self.values.read(first, last).reshape(-1, width), self.values.dtype)
        table = to_floats(self.scale.read(), self.scale.dtype).astype(np.float32)
        if table.size == 1:
            scale = table.reshape(1, 1)
        else:
            table = table.reshape(-1, table.shape[-1] if table.ndim > 1 and self.block[1] else 1)
            high, wide = self.block[0] or 1, self.block[1] or width
            columns = np.repeat(table, wide, axis=1)[:, :width]
            scale = columns[np.arange(first, last) // high]
        product: Array = values.astype(np.float32) * scale
        return product


def _fp8(tensors: Mapping[str, Stored], block: Any, where: str) -> Sources:
    """`X.weight` with `X.weight_scale_inv` (by block or whole) or `X.weight_scale`."""
    found: Sources = {}
    for name, one in tensors.items():
        if name.endswith(("_scale_inv", ".weight_scale", "activation_scale", ".input_scale")):
            continue
        scale = tensors.get(f"{name}_scale_inv") or tensors.get(f"{name}_scale")
        if scale is None:
            found[name] = one
            continue
        found[name] = _scaled(name, one, scale, block, where)
    return found


def _scaled(name: str, one: Stored, scale: Stored, block: Any, where: str) -> Stored:
    high, wide = one.shape[0], one.shape[-1]
    by_block = (0, 0)
    size = int(np.prod(scale.shape))
    if block:
        by_block = (int(block[0]), int(block[1]))
        need = (-(-high // by_block[0]), -(-wide // by_block[1]))
        if tuple(scale.shape) != need:
            raise ModelError(
                f"{where}: {scale.name} has shape {list(scale.shape)}, blocks of {list(by_block)}"
                f" need {list(need)}"
            )
    elif size not in (1, high):
        raise ModelError(f"{where}: {scale.name} has {size} values for {high} rows")
    return _Scaled(name, one.shape, values=one, scale=scale, block=by_block)


# -- compressed-tensors


def _compressed(tensors: Mapping[str, Stored], config: Mapping[str, Any], where: str) -> Sources:
    groups = config.get("config_groups") or {}
    form = config.get("format")
    known = ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized")
    if len(groups) != 1 or form not in known:
        raise ModelError(
            f"{where}: compressed-tensors of format {shown(str(form))} with {len(groups)} groups"
            " is not supported",
            hint=f"known are {', '.join(known)} with one group",
        )
    weights = next(iter(groups.values())).get("weights") or {}
    if form != "pack-quantized":
        return _fp8(tensors, weights.get("block_structure"), where)
    bits, group = weights.get("num_bits"), weights.get("group_size")
    if bits not in (2, 4, 8) or weights.get("type", "int") != "int":
        raise ModelError(f"{where}: packed weights of {bits} bits are not supported")
    found: Sources = {}
    for name, one in tensors.items():
        base, _, part = name.rpartition("_")
        if part == "packed":
            found[base] = _pack(base, tensors, bits, group, where)
        elif not any(
            name.endswith(end) and f"{name.removesuffix(end)}_packed" in tensors
            for end in ("_scale", "_shape", "_zero_point")
        ):
            found[name] = one
    return found


@dataclass(frozen=True)
class _Packed(_Virtual):
    """Integers of a few bits, several in an int32 along the rows, a scale for each group."""

    packed: Any = None
    scale: Any = None
    zeros: Any = None
    bits: int = 4
    group: int = 0

    def rows(self, first: int, last: int) -> Array:
        width = self.shape[1]
        q = _unpacked(self.packed.read(first, last), self.bits)[:, :width].astype(np.int32)
        scale = to_floats(self.scale.read(first, last), self.scale.dtype).astype(np.float32)
        scale = scale.reshape(last - first, -1)
        if self.zeros is None:
            zero: Any = 1 << (self.bits - 1)
        else:
            every = _unpacked(np.ascontiguousarray(self.zeros.read().T), self.bits).T
            zero = np.repeat(every[first:last].astype(np.int32), self.group, axis=1)[:, :width]
        each = np.repeat(scale, -(-width // scale.shape[1]), axis=1)[:, :width]
        product: Array = (q - zero).astype(np.float32) * each
        return product


def _pack(name: str, tensors: Mapping[str, Stored], bits: int, group: Any, where: str) -> Stored:
    parts = {n: tensors.get(f"{name}_{n}") for n in ("packed", "scale", "shape", "zero_point")}
    packed, scale, sizes = parts["packed"], parts["scale"], parts["shape"]
    if packed is None or scale is None or sizes is None or packed.dtype != "I32":
        raise ModelError(f"{where}: {name} is packed but has no scale or shape")
    shape = tuple(int(n) for n in sizes.read().reshape(-1))
    per_word = 32 // bits
    n_groups = -(-shape[1] // group) if group and group > 0 else 1
    if (
        len(shape) != 2
        or tuple(packed.shape) != (shape[0], -(-shape[1] // per_word))
        or int(np.prod(scale.shape)) != shape[0] * n_groups
    ):
        raise ModelError(f"{where}: {name} of shape {list(shape)} does not fit its packed parts")
    width = group if group and group > 0 else shape[1]
    return _Packed(
        name,
        shape,
        packed=packed,
        scale=scale,
        zeros=parts["zero_point"],
        bits=bits,
        group=width,
    )


# -- GPTQ and AWQ: input features along the rows of the file


@dataclass(frozen=True)
class _Columns(_Virtual):
    """qweight, qzeros and scales by group of input features; g_idx says which group each is in."""

    qweight: Any = None
    qzeros: Any = None
    scales: Any = None
    g_idx: Any = None
    bits: int = 4
    group: int = 128
    offset: int = 0  # what is added to the stored zero points
    awq: bool = False

    def rows(self, first: int, last: int) -> Array:
        whole = self._whole()
        return whole[first:last] if (first, last) != (0, self.shape[0]) else whole

    def _whole(self) -> Array:
        scales = to_floats(self.scales.read(), self.scales.dtype).astype(
            np.float32
        )  # [groups, out]
        zeros = _unpacked(self.qzeros.read(), self.bits)
        if self.awq:
            zeros = _in_order(zeros, self.bits)
            q = _in_order(_unpacked(self.qweight.read(), self.bits), self.bits)  # [in, out]
        else:
            q = _unpacked(np.ascontiguousarray(self.qweight.read().T), self.bits).T  # [in, out]
        n_in = self.shape[1]
        if self.g_idx is None:
            which = np.arange(n_in) // self.group
        else:
            which = self.g_idx.read().astype(np.int64)
        zeros = zeros.astype(np.int32) + self.offset
        values = (q.astype(np.int32) - zeros[which]).astype(np.float32) * scales[which]
        return np.ascontiguousarray(values.T)


def _packed_columns(
    tensors: Mapping[str, Stored], config: Mapping[str, Any], method: str, where: str
) -> Sources:
    bits = config.get("bits", config.get("w_bit", 4))
    group = config.get("group_size", config.get("q_group_size", 128))
    version = config.get("version", "gemm")
    known, text = bits in (2, 4, 8), f"{method} with {bits} bits"
    if method == "awq":
        known, text = bits == 4 and version in ("gemm", "GEMM"), f"{text}, {shown(str(version))},"
    if not known:
        raise ModelError(
            f"{where}: {text} is not supported",
            hint="known are gptq with 2, 4 or 8 bits and awq with 4 bits, gemm",
        )
    offset = 1 if method == "gptq" and config.get("checkpoint_format", "gptq") == "gptq" else 0
    found: Sources = {}
    for name, one in tensors.items():
        base, _, part = name.rpartition(".")
        if part == "qweight":
            found[f"{base}.weight"] = _columns(base, tensors, bits, group, offset, method, where)
        elif f"{base}.qweight" not in tensors or part not in ("qzeros", "scales", "g_idx"):
            found[name] = one
    return found


def _columns(
    base: str,
    tensors: Mapping[str, Stored],
    bits: int,
    group: int,
    offset: int,
    method: str,
    where: str,
) -> Stored:
    qweight, qzeros, scales = (tensors.get(f"{base}.{n}") for n in ("qweight", "qzeros", "scales"))
    if qweight is None or qzeros is None or scales is None:
        raise ModelError(f"{where}: {base} lacks its qzeros or scales")
    per_word = 32 // bits
    awq = method == "awq"
    n_in = qweight.shape[0] * (1 if awq else per_word)
    n_out = qweight.shape[1] * (per_word if awq else 1)
    n_groups = scales.shape[0]
    if scales.shape[1] != n_out or tuple(qzeros.shape) != (n_groups, n_out // per_word):
        raise ModelError(f"{where}: {base}: scales and qzeros do not fit {n_out} outputs")
    size = group if group > 0 else n_in
    g_idx = tensors.get(f"{base}.g_idx")
    if g_idx is None and -(-n_in // size) != n_groups:
        raise ModelError(f"{where}: {base} has {n_groups} groups for {n_in} inputs of {size}")
    return _Columns(
        f"{base}.weight",
        (n_out, n_in),
        qweight=qweight,
        qzeros=qzeros,
        scales=scales,
        g_idx=g_idx,
        bits=bits,
        group=size,
        offset=offset,
        awq=awq,
    )


_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which column lies in each four bits of a word, lowest first


def _in_order(values: Array, bits: int) -> Array:
    """AWQ's interleaved columns in their own order."""
    n = 32 // bits
    inverse = np.argsort(_AWQ_ORDER)
    return values.reshape(len(values), -1, n)[:, :, inverse].reshape(values.shape)


def _unpacked(words: Array, bits: int) -> Array:
    """int32 [rows, n] -> uint8 [rows, n * 32 / bits], lowest bits first."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    parts = words.astype("<i4").view("<u4")[..., None] >> shifts & np.uint32((1 << bits) - 1)
    return parts.astype(np.uint8).reshape(len(words), -1)
