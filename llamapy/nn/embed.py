"""From token ids to vectors."""

from __future__ import annotations

from llamapy.graph import Tensor
from llamapy.nn.norm import layer_norm
from llamapy.nn.params import Encoder, Params
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights


def embed(g: Step, w: Weights, p: Params, *, scale: float = 1.0) -> Tensor:
    """The tokens' rows of `token_embd.weight`, times `scale`; or the batch's own embeddings as they
    are: f32 [n_embd, n_tokens]."""
    table = w("token_embd.weight", p.n_embd, p.n_vocab)
    if g.embeddings:
        return g.input("embeddings", "f32", [p.n_embd, g.n_tokens])
    x: Tensor = g.get_rows(table, g.tokens)
    return x if scale == 1.0 else g.scale(x, scale)


def embed_encoder(g: Step, w: Weights, p: Encoder, *, positions: bool) -> Tensor:
    """The tokens' vectors, plus that of the first sentence's type if there is one and those of
    positions if these are learned, normalised: f32 [n_embd, n_tokens]."""
    x = embed(g, w, p)
    types = w.get("token_types.weight", p.n_embd, p.n_token_types)
    if types is not None:
        first = g.view(types, (p.n_embd,), None, 0)
        x = g.add(x, first if types.kind.name == "f32" else g.cast(first, "f32"))
    if positions:
        x = g.add(x, embed_positions(g, w, p))
    return layer_norm(g, x, w, "token_embd_norm", p)


def embed_positions(g: Step, w: Weights, p: Params) -> Tensor:
    """The learned vectors of the batch's positions: f32 [n_embd, n_tokens]."""
    table = w("position_embd.weight", p.n_embd, p.n_ctx_train)
    found: Tensor = g.get_rows(table, g.positions)
    return found
