"""The random numbers of the samplers: std::mt19937 and the draws that libstdc++ makes from it.

The generator is Matsumoto and Nishimura's MT19937 (1998), which Python's `random` holds too; only
the seeding differs, so the 624 words are filled here by `init_genrand` (as std::mt19937 does) and
handed over. A seed therefore gives the same stream as in llama.cpp.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

N_WORDS = 624
TWO_32 = 4294967296.0
TWO_64 = TWO_32 * TWO_32
BELOW_ONE_F64 = float(np.nextafter(np.float64(1), np.float64(0)))
BELOW_ONE_F32 = float(np.nextafter(np.float32(1), np.float32(0)))


class Mt19937:
    """A stream of 32-bit words that is fixed by `seed` (0 .. 2^32 - 1)."""

    def __init__(self, seed: int) -> None:
        self._words = random.Random()
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Start the stream again: init_genrand of the MT19937 paper."""
        key = [seed & 0xFFFFFFFF]
        for i in range(1, N_WORDS):
            key.append((1812433253 * (key[-1] ^ (key[-1] >> 30)) + i) & 0xFFFFFFFF)
        self.restore([*key, N_WORDS])

    def word(self) -> int:
        """The next word, 0 .. 2^32 - 1."""
        return self._words.getrandbits(32)

    def uniform(self) -> float:
        """A double in [0, 1) as std::uniform_real_distribution has it: two words, low first."""
        low = float(self.word())
        value = (low + self.word() * TWO_32) / TWO_64
        return min(value, BELOW_ONE_F64)

    def uniform_f32(self) -> float:
        """A single in [0, 1) as std::uniform_real_distribution draws it: one word, rounded."""
        return min(float(np.float32(self.word())) / TWO_32, BELOW_ONE_F32)

    def discrete(self, probs: NDArray[np.float32]) -> int:
        """An index by its weight: std::discrete_distribution, which draws nothing for one."""
        if len(probs) < 2:
            return 0
        weights = probs.astype(np.float64)
        edges = np.cumsum(weights / np.cumsum(weights)[-1])
        edges[-1] = 1.0
        return int(np.searchsorted(edges, self.uniform(), side="left"))

    def state(self) -> list[int]:
        """The 624 words and the position in them, for `restore`."""
        return list(self._words.getstate()[1])

    def restore(self, state: Sequence[int]) -> None:
        """Go on from a `state`."""
        self._words.setstate((3, tuple(state), None))
