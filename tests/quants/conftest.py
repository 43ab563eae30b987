"""The truth for codecs: ggml's own base library (`libggml-python`, tools/ggml_base.py)."""

import ggml_base
import pytest


@pytest.fixture(scope="session")
def ggml():
    library = ggml_base.connect()
    if library is None:
        pytest.skip("libggml-python is not installed, or has no library for this system")
    return library
