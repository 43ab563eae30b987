"""What ours is compared with: the `gguf` package, and ggml's own C code through ctypes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from c_gguf import CGguf

SIZES = {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}


@pytest.fixture(scope="session")
def c_gguf() -> CGguf:
    return CGguf()


@pytest.fixture(scope="session")
def sizes() -> Callable[[int], tuple[int, int] | None]:
    """Block geometry from the `gguf` package."""
    return SIZES.get


def _write(path: Path, *, endian: str = "<", alignment: int = 0) -> Path:
    big = endian == ">"
    order = gguf.GGUFEndian.BIG if big else gguf.GGUFEndian.LITTLE
    writer = gguf.GGUFWriter(path, "llama", endianess=order)
    if alignment:
        writer.add_custom_alignment(alignment)
    for kind, value in (
        ("uint8", 250),
        ("int8", -7),
        ("uint16", 65000),
        ("int16", -30000),
        ("uint32", 4000000000),
        ("int32", -2000000000),
        ("float32", 0.1),
        ("uint64", 2**63 + 5),
        ("int64", -(2**62)),
        ("float64", 0.1),
        ("bool", True),
        ("string", "naïve 日本語\n\x00z"),
    ):
        getattr(writer, f"add_{kind}")(f"test.{kind}", value)
    writer.add_array("test.strings", ["a", "", "日本", "x" * 300])
    writer.add_array("test.ints", [1, -2, 3])
    writer.add_array("test.floats", [0.5, float("inf"), float("nan")])
    writer.add_array("test.bools", [True, False])
    writer.add_key_value("test.bytes", bytes(range(256)), gguf.GGUFValueType.ARRAY)
    writer.add_key_value(
        "test.u64", [1, 2**64 - 1], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT64
    )
    rng = np.random.default_rng(1)
    writer.add_tensor("f32.weight", rng.standard_normal((3, 5), np.float32))
    writer.add_tensor("f16.weight", rng.standard_normal((2, 1, 7)).astype(np.float16))
    writer.add_tensor("one", np.ones((1, 1, 4), np.float32))
    writer.add_tensor("i8", np.arange(5, dtype=np.int8))
    values = rng.standard_normal((4, 64), np.float32)
    for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0):
        blocks = gguf.quants.quantize(values, kind)
        if big:  # as gguf-py's converter does: the scale alone is turned around
            blocks = blocks.copy()
            view = blocks.reshape(-1, SIZES[int(kind)][1])
            view[:, :2] = view[:, 1::-1]
        writer.add_tensor(kind.name, blocks, raw_dtype=kind, tensor_endianess=order)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def official(tmp_path: Path) -> Callable[..., Path]:
    """Make a file of every value type and several tensor types with the `gguf` package."""

    def make(name: str = "official.gguf", **options: object) -> Path:
        return _write(tmp_path / name, **options)

    return make
