"""tools/roofline.py: every peak can be measured, and a thread that fails is not a fast one."""

from __future__ import annotations

import numpy as np
import pytest
import roofline


def test_every_peak_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "STEPS", 8000)
    monkeypatch.setattr(roofline, "BYTES", 2 * roofline.PART)
    data = np.ones(2 * roofline.PART, np.uint8)
    roofline.peaks(2, data)  # compiles
    found = roofline.peaks(2, data)
    assert set(found) == {"read", *roofline.UNITS}
    assert all(1e6 < rate < 1e15 for rate in found.values()), found


def test_a_thread_that_fails_is_no_measurement() -> None:
    def fail(i: int) -> None:
        raise RuntimeError(f"part {i}")

    with pytest.raises(RuntimeError, match="part 0"):
        roofline.together(2, fail)
