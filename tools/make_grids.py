"""Write the codebooks of the IQ types to llamapy/quants/grids/: one .npz a grid.

Each holds `points`, int8 [n, 4 or 8]; point i is the one that model files call i. Where the numbers
come from: the `gguf` package (llama.cpp's gguf-py, MIT), whose dequantizers hold each grid as
hexadecimal digits. IQ1_S and IQ1_M share one grid.

    python tools/make_grids.py            write them
    python tools/make_grids.py --check    compare with those that are there (exit code 1 if unlike)
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import quants

FOLDER = Path(__file__).parents[1] / "llamapy" / "quants" / "grids"
SOURCES = {
    "iq1": quants.IQ1_S,
    "iq2_xxs": quants.IQ2_XXS,
    "iq2_xs": quants.IQ2_XS,
    "iq2_s": quants.IQ2_S,
    "iq3_xxs": quants.IQ3_XXS,
    "iq3_s": quants.IQ3_S,
}


def points(source: Any) -> npt.NDArray[np.int8]:
    """The grid of a gguf type as int8 [n, dimension]."""
    source.init_grid()
    return np.ascontiguousarray(source.grid.reshape(source.grid_shape).astype(np.int8))


def main() -> int:
    different = []
    for name, source in SOURCES.items():
        path, grid = FOLDER / f"{name}.npz", points(source)
        if "--check" in sys.argv[1:]:
            if not np.array_equal(np.load(path)["points"], grid):
                different.append(name)
        else:
            np.savez_compressed(path, points=grid)
            print(
                f"{path.name}: {len(grid)} points of {grid.shape[1]}, {path.stat().st_size} bytes"
            )
    for name in different:
        print(f"{name}.npz differs from the gguf package", file=sys.stderr)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
