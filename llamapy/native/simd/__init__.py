"""The vector vocabulary of compiled code. Everything that depends on the processor hides in `dots`
and `native.levels`.

Used lazily: `from llamapy.native import simd`, then `simd.fma_f32x8(a, b, c)` inside a compiled
function.
"""

from llamapy.native.simd.dots import *  # noqa: F403
from llamapy.native.simd.maths import *  # noqa: F403
from llamapy.native.simd.panel import *  # noqa: F403
from llamapy.native.simd.quartet import *  # noqa: F403
from llamapy.native.simd.tiles import *  # noqa: F403
from llamapy.native.simd.vectors import *  # noqa: F403
