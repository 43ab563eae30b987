"""Record what ggml makes of a set of rows, for every type: the truth for tests/quants.

    python tools/record_quants.py [FOLDER]      # default: fixtures/quants

Writes `inputs.npz` (rows that ask the searches different questions, and importances),
`encoded.json` ({type: {rows: {importance: start of the sha256 of the blocks}}}) and MANIFEST.toml.
Needs libggml-python.
"""

from __future__ import annotations

import hashlib
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ggml_base
import numpy as np
from numpy.typing import NDArray

from llamapy.quants import codec

N_ROWS, N = 2, 512  # divides into blocks of every type
FOLDER = Path(__file__).parent.parent / "fixtures" / "quants"
Arrays = dict[str, NDArray[Any]]


def rows() -> Arrays:
    """Rows by name, float32 [N_ROWS, N]."""
    rng = np.random.default_rng(1)
    shape = (N_ROWS, N)
    normal = rng.standard_normal(shape)
    by_group = np.repeat(np.exp2(rng.integers(-20, 4, (N_ROWS, N // 32))), 32, axis=1)
    outlier = np.zeros(shape)
    outlier[:, N // 3] = -5
    below_one = np.nextafter(np.float32(-1), np.float32(0))
    made = {
        "normal": normal,
        "uniform": rng.uniform(-1, 1, shape),
        "positive": np.abs(normal) + 1,
        "negative": -np.abs(normal) - 1,
        "sparse": np.where(rng.random(shape) < 0.05, normal, np.copysign(0, normal)),
        "constant": np.full(shape, 0.37),
        "constant_negative": np.full(shape, -0.37),
        "nearly_constant": np.where(rng.random(shape) < 0.5, -1, below_one),
        "tiny": normal * 1e-8,
        "subnormal": normal * 1e-40,
        "large": normal * 1e6,
        "zeros": np.zeros(shape),
        "outlier": outlier,
        "halves": rng.integers(-16, 17, shape) * 0.5,
        "few_values": rng.choice(np.array([-3, -1, 0.5, 2]), shape),
        "groups": normal * by_group,
        "heavy": rng.standard_cauchy(shape),
    }
    return {name: values.astype(np.float32) for name, values in made.items()}


def importances() -> Arrays:
    """Importances by name, float32 [N]."""
    rng = np.random.default_rng(7)
    made = {
        "uniform": rng.uniform(0.1, 1, N),
        "squares": rng.standard_normal(N) ** 2,
        "wide": np.exp(5 * rng.standard_normal(N)),
        "some_zero": np.where(rng.random(N) < 0.3, 0, rng.random(N)),
        "zero": np.zeros(N),
    }
    return {name: values.astype(np.float32) for name, values in made.items()}


def digest(blocks: NDArray[np.uint8]) -> str:
    """Enough of a hash to tell blocks apart."""
    return hashlib.sha256(blocks.tobytes()).hexdigest()[:16]


def encoded(ggml: ggml_base.Ggml) -> dict[str, dict[str, dict[str, str]]]:
    """Digests of the blocks of every type that is quantized to."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for kind in codec.registry().values():
        if kind.encode is None:
            continue
        weights: dict[str, Any] = {} if ggml.needs_importance(kind.type_id) else {"none": None}
        weights |= {} if kind.name in ("q8_1", "q8_K") else importances()
        found[kind.name] = {
            name: {w: digest(ggml.quantize(kind, values, weights[w])) for w in weights}
            for name, values in rows().items()
        }
    return found


def record(folder: Path) -> None:
    """Write the three files."""
    ggml = ggml_base.connect()
    if ggml is None:
        sys.exit("needs libggml-python")
    folder.mkdir(parents=True, exist_ok=True)
    inputs = {f"rows/{k}": v for k, v in rows().items()}
    inputs |= {f"importance/{k}": v for k, v in importances().items()}
    np.savez_compressed(folder / "inputs.npz", **inputs)  # type: ignore[arg-type]
    text = json.dumps(encoded(ggml), indent=1, sort_keys=True)
    (folder / "encoded.json").write_text(text + "\n", encoding="utf-8")
    lines = [
        'made_by = "tools/record_quants.py"',
        f'made_from = "ggml_quantize_chunk of libggml-python {version("libggml-python")}"',
    ]
    for name in ("inputs.npz", "encoded.json"):
        data = (folder / name).read_bytes()
        lines += ["", f'["{name}"]', f"bytes = {len(data)}"]
        lines.append(f'sha256 = "{hashlib.sha256(data).hexdigest()}"')
    (folder / "MANIFEST.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
