"""The sixteen numbers of IQ4_NL and IQ4_XS, denser around zero, where most weights are."""

from __future__ import annotations

import numpy as np

# llama.cpp's kvalues_iq4nl.
VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
