"""A step: the graph of one ubatch while it is being described. What `g` is in every `build(g, w,
p)`."""

from __future__ import annotations

from llamapy.graph import Builder, Tensor
from llamapy.nn.cache import Cache


class Step(Builder):
    """A Builder that knows the ubatch's sizes and the attention cache, and has the common inputs.

    n_tokens     tokens computed at once
    n_outputs    of these, the ones whose logits are wanted
    n_ctx        the context's size (some models choose frequencies by it)
    flash        whether attention is one op or spelled out
    embeddings   whether the batch gives embeddings instead of tokens
    whole        whether every row goes through the last layer, and only the head leaves some out
    """

    def __init__(
        self,
        *,
        n_tokens: int,
        n_outputs: int,
        n_ctx: int,
        cache: Cache,
        flash: bool = True,
        embeddings: bool = False,
        whole: bool = False,
    ) -> None:
        super().__init__()
        self.n_tokens, self.n_outputs, self.n_ctx = n_tokens, n_outputs, n_ctx
        self.cache, self.flash, self.embeddings = cache, flash, embeddings
        self.whole = whole

    @property
    def tokens(self) -> Tensor:
        """Token ids, i32 [n_tokens]."""
        return self.input("tokens", "i32", [self.n_tokens])

    @property
    def positions(self) -> Tensor:
        """Positions, i32 [n_tokens]."""
        return self.input("positions", "i32", [self.n_tokens])

    def wanted(self, *tensors: Tensor) -> list[Tensor]:
        """Only the rows [n, n_outputs] whose logits are wanted. Call it in the last layer, after
        the cache is written."""
        return list(tensors) if self.whole else self._chosen(*tensors)

    def scored(self, x: Tensor) -> Tensor:
        """What `wanted` left of the rows whose logits nobody wants is left out now."""
        return self._chosen(x)[0] if self.whole else x

    def _chosen(self, *tensors: Tensor) -> list[Tensor]:
        if self.n_outputs == self.n_tokens:
            return list(tensors)
        ids = self.input("out_ids", "i32", [max(1, self.n_outputs)])
        return [self.get_rows(t, ids) for t in tensors]
