"""How near the logits of real models are to those of float32: the reference backend's, which is
numpy, and nearer than llama.cpp's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import compare_fidelity
import pytest

from llamapy.runtime.batch import Batch
from llamapy.runtime.context import Context
from llamapy.runtime.model import Model

N = 96
EXACT = 1e-5  # nats of KL divergence that 16 bits may cost


@pytest.mark.model
@pytest.mark.peer
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_logits_are_nearer_to_float32_than_the_peers(
    name: str, peer: Any, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(name)
    with peer.open(path) as model:
        text = compare_fidelity.english().encode()
        tokens = model.tokenize(text, add_special=True, parse_special=False)[:N]
        with model.context(n_ctx=N, n_batch=N, n_ubatch=N) as context:
            theirs = context.logits(tokens)
    truth = compare_fidelity.our_logits(path, tokens, "reference")
    distance = compare_fidelity.divergence(truth, theirs)
    ours = compare_fidelity.our_logits(path, tokens, "cpu")
    assert compare_fidelity.divergence(truth, ours) < distance / 2
    with Context(Model(path), n_ctx=N, n_outputs_max=N, activation_bits=16) as context:
        exact = context.decode(Batch(tokens=tokens, outputs="all"))
        assert compare_fidelity.divergence(truth, exact) < min(EXACT, distance / 50)
