"""Checkpoints that are quantized already: values are what the formats say, others are refused.

Each test packs known integers by the format's own words and compares with plain arithmetic.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamapy.convert import dequant, safetensors
from llamapy.core.errors import ModelError
from tests.convert import folders

RNG = np.random.default_rng(5)


def opened(path: Path, tensors: dict[str, Any], config: dict[str, Any]) -> dict[str, np.ndarray]:
    folders.write_safetensors(path, tensors)
    made = dequant.sources(safetensors.tensors(path), {"quantization_config": config}, "x")
    return {
        name: safetensors.to_floats(one.read(), one.dtype).astype(np.float32)
        for name, one in made.items()
    }


def words(values: np.ndarray, bits: int) -> np.ndarray:
    """Small integers [.., n] packed along the last axis into int32, lowest bits first."""
    per = 32 // bits
    parts = values.reshape(*values.shape[:-1], -1, per).astype(np.uint64)
    packed = (parts << (np.arange(per, dtype=np.uint64) * bits)).sum(axis=-1)
    return packed.astype(np.uint32).view(np.int32)


def test_fp8_blocks(tmp_path: Path) -> None:
    codes = RNG.integers(0, 120, (5, 7)).astype(np.uint8)
    scale = RNG.uniform(0.5, 2, (2, 3)).astype(np.float32)
    tensors = {"a.weight": ("F8_E4M3", codes), "a.weight_scale_inv": scale}
    tensors |= {"b.weight": np.ones((2, 2), np.float32)}
    config = {"quant_method": "fp8", "weight_block_size": [4, 3]}
    found = opened(tmp_path / "m.safetensors", tensors, config)
    each = np.repeat(np.repeat(scale, 4, 0), 3, 1)[:5, :7]
    assert np.array_equal(found["a.weight"], safetensors.to_floats(codes, "F8_E4M3") * each)
    assert sorted(found) == ["a.weight", "b.weight"]
    with pytest.raises(ModelError, match="blocks of"):
        opened(tmp_path / "m.safetensors", tensors, config | {"weight_block_size": [2, 2]})


@pytest.mark.parametrize("shape", [(1,), (5, 1)])
def test_fp8_rows(shape: tuple[int, ...], tmp_path: Path) -> None:
    codes = RNG.integers(0, 120, (5, 8)).astype(np.uint8)
    scale = RNG.uniform(0.5, 2, shape).astype(np.float32)
    groups = {"g": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}
    config = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    found = opened(
        tmp_path / "m.safetensors",
        {"a.weight": ("F8_E4M3", codes), "a.weight_scale": scale},
        config | {"config_groups": groups},
    )
    want = safetensors.to_floats(codes, "F8_E4M3") * scale.reshape(-1, 1)
    assert np.array_equal(found["a.weight"], want)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_packed(bits: int, zeros: bool, tmp_path: Path) -> None:
    q = RNG.integers(0, 1 << bits, (8, 32))
    scale = RNG.uniform(0.5, 2, (8, 2)).astype(np.float32)
    zero = RNG.integers(0, 1 << bits, (8, 2))
    tensors: dict[str, Any] = {
        "a.weight_packed": words(q, bits),
        "a.weight_scale": scale,
        "a.weight_shape": np.array([8, 32], np.int64),
    }
    if zeros:
        tensors["a.weight_zero_point"] = np.ascontiguousarray(words(zero.T, bits).T)
    weights = {"num_bits": bits, "type": "int", "group_size": 16, "strategy": "group"}
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"g": {"weights": weights}},
    }
    found = opened(tmp_path / "m.safetensors", tensors, config)
    offset = np.repeat(zero, 16, 1) if zeros else 1 << (bits - 1)
    want = (q - offset).astype(np.float32) * np.repeat(scale, 16, 1)
    assert np.array_equal(found["a.weight"], want)
    assert list(found) == ["a.weight"]


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_gptq(bits: int, order: bool, tmp_path: Path) -> None:
    n_in, n_out, group = 32, 16, 16
    q = RNG.integers(0, 1 << bits, (n_in, n_out))
    zero = RNG.integers(0, (1 << bits) - 1, (2, n_out))
    scale = RNG.uniform(0.5, 2, (2, n_out)).astype(np.float16)
    which = RNG.permutation(np.arange(n_in) // group) if order else np.arange(n_in) // group
    tensors: dict[str, Any] = {
        "a.qweight": np.ascontiguousarray(words(q.T, bits).T),
        "a.qzeros": words(zero, bits),
        "a.scales": scale,
        "a.g_idx": which.astype(np.int32),
        "a.bias": np.ones(n_out, np.float32),
    }
    config = {"quant_method": "gptq", "bits": bits, "group_size": group}
    found = opened(tmp_path / "m.safetensors", tensors, config)
    want = (q - (zero + 1)[which]).astype(np.float32) * scale.astype(np.float32)[which]
    assert np.array_equal(found["a.weight"], want.T)
    assert sorted(found) == ["a.bias", "a.weight"]
    second = opened(tmp_path / "m.safetensors", tensors, config | {"checkpoint_format": "gptq_v2"})
    want = (q - zero[which]).astype(np.float32) * scale.astype(np.float32)[which]
    assert np.array_equal(second["a.weight"], want.T)


def test_awq(tmp_path: Path) -> None:
    n_in, n_out = 32, 16
    q, zero = RNG.integers(0, 16, (n_in, n_out)), RNG.integers(0, 16, (2, n_out))
    scale = RNG.uniform(0.5, 2, (2, n_out)).astype(np.float16)
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # of columns in a word, from AutoAWQ's packing

    def interleaved(values: np.ndarray) -> np.ndarray:
        return words(values.reshape(len(values), -1, 8)[:, :, order].reshape(values.shape), 4)

    tensors = {"a.qweight": interleaved(q), "a.qzeros": interleaved(zero), "a.scales": scale}
    config = {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}
    found = opened(tmp_path / "m.safetensors", tensors, config)
    which = np.arange(n_in) // 16
    want = (q - zero[which]).astype(np.float32) * scale.astype(np.float32)[which]
    assert np.array_equal(found["a.weight"], want.T)


REFUSED = [
    {"quant_method": "bitsandbytes"},
    {"quant_method": "gptq", "bits": 3},
    {"quant_method": "awq", "bits": 4, "version": "marlin"},
    {"quant_method": "compressed-tensors", "format": "marlin-24", "config_groups": {"g": {}}},
    {"quant_method": "mxfp4"},
]


@pytest.mark.parametrize("config", REFUSED, ids=lambda c: c["quant_method"])
def test_refused_by_name(config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=config["quant_method"]):
        opened(tmp_path / "m.safetensors", {"a": np.ones(2, np.float32)}, config)
