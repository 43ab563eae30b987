"""From the last hidden state to logits."""

from __future__ import annotations

from llamapy.graph import Tensor
from llamapy.nn.linear import finish
from llamapy.nn.params import Params
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights


def head(
    g: Step, x: Tensor, w: Weights, p: Params, *, scale: float = 1.0, softcap: float = 0.0
) -> Tensor:
    """Logits f32 [n_vocab, n_outputs] of the normalised x: by `output.weight`, or by the embeddings
    if there is none.

    scale multiplies them; softcap c makes them c * tanh(logits / c).
    """
    x = g.scored(x)
    g.tap("result_norm", x)
    matrix = w.get("output.weight", p.n_embd, p.n_vocab)
    if matrix is None:
        matrix = w("token_embd.weight", p.n_embd, p.n_vocab)
    logits = finish(g, g.mul_mat(matrix, x), w, "output", p.n_vocab)
    if scale != 1.0:
        logits = g.scale(logits, scale)
    return capped(g, logits, softcap)


def capped(g: Step, x: Tensor, softcap: float) -> Tensor:
    """softcap * tanh(x / softcap); x itself if softcap is 0."""
    if not softcap:
        return x
    return g.scale(g.tanh(g.scale(x, 1.0 / softcap)), softcap)
