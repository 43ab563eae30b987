"""Collecting an importance matrix: sums of squares of what each weight's columns meet.

As llama-imatrix (tools/imatrix/imatrix.cpp): the matrix products of blocks, and of the output on
request, that meet at least 16 rows; products of experts always, each expert for itself. The sums
are nodes of the graph (`moments`), so nothing large is kept or copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamapy.core.errors import Aborted
from llamapy.graph import PARAM, Tensor
from llamapy.nn.step import Step
from llamapy.runtime.batch import Tokens
from llamapy.runtime.model import Model
from llamapy.runtime.scores import Rows
from llamapy.tasks.chunks import Evaluator, Ids, cut
from llamapy.tasks.importance import Entry, Imatrix, merge
from llamapy.tasks.perplexity import OnChunk, Totals, tokens_of

LEAST_ROWS = 16
OUTPUTS = ("output.weight", "token_embd.weight")


@dataclass
class _Sum:
    """Sums of one weight so far, in double."""

    moments: NDArray[np.float64]  # [n_mat, 2, n_cols]
    counts: NDArray[np.int64]  # [n_mat]


@dataclass
class Collector:
    """An observer that sums up. process_output: the output's weights, too."""

    process_output: bool = False
    whole: bool = True  # the last layer's products meet every row, whichever is scored
    sums: dict[str, _Sum] = field(default_factory=dict)
    _plans: dict[int, list[tuple[str, str, str, int]]] = field(default_factory=dict)

    def choose(self, g: Step) -> None:
        """Put a `moments` node before each product of interest; products of the same rows share
        one. The plan is found again by the number of tokens and outputs."""
        plan: list[tuple[str, str, str, int]] = []
        names: dict[tuple[int, int], str] = {}
        for node in list(g.graph.nodes):
            weight = self._weight(node)
            if weight is None:
                continue
            x, ids = node.src[1], node.src[2] if len(node.src) > 2 else None
            n_mat = weight.ne[2] if ids is not None else 1
            key = (id(x), n_mat if ids is not None else 0)
            if key not in names:
                names[key] = f"moments.{weight.name}"
                made = g.moments(x, ids, n_mat=n_mat) if ids is not None else g.moments(x)
                g.keep(names[key], made, before=node)
            chosen = "" if ids is None else f"ids.{names[key]}"
            if ids is not None and chosen not in g.kept:
                g.keep(chosen, g.cont(ids) if not ids.contiguous else ids)
            plan.append((weight.name, names[key], chosen, x.n_rows))
        self._plans[g.n_tokens] = plan

    def _weight(self, node: Tensor) -> Tensor | None:
        """The weight of a product that counts."""
        if node.op is None or node.op.name not in ("mul_mat", "mul_mat_id"):
            return None
        weight, x = node.src[:2]
        if not weight.flags & PARAM or x.kind.name != "f32":
            return None
        if not weight.name.startswith("blk."):
            return weight if self.process_output and weight.name in OUTPUTS else None
        return weight if node.op.name == "mul_mat_id" or x.n_rows >= LEAST_ROWS else None

    def see(self, part: Tokens, values: Callable[[str], Any]) -> None:
        read: dict[str, Any] = {}

        def once(name: str) -> Any:
            if name not in read:
                read[name] = values(name)
            return read[name]

        for weight, moments, chosen, n_rows in self._plans[len(part)]:
            found = once(moments)[0].astype(np.float64)
            n_mat = len(found)
            counts = np.array([n_rows])
            if chosen:
                counts = np.bincount(once(chosen).ravel(), minlength=n_mat)
            total = self.sums.get(weight)
            if total is None:
                zero = np.zeros(n_mat, np.int64)
                total = self.sums[weight] = _Sum(np.zeros_like(found), zero)
            total.moments += found
            total.counts += counts

    def imatrix(self, dataset: str, n_chunks: int, n_ctx: int) -> Imatrix:
        """What has been collected so far."""
        entries = {
            name: Entry(
                total.moments[:, 0].astype(np.float32),
                total.counts.copy(),
                total.moments[:, 1].astype(np.float32),
            )
            for name, total in sorted(self.sums.items())
        }
        return Imatrix(entries, [dataset], n_chunks, n_ctx)


@dataclass
class Collected:
    """An importance matrix and the perplexity of the text that it was made of.

    interrupted  whether the work was stopped before the end
    """

    imatrix: Imatrix
    ppl: float = 0.0
    ppl_err: float = 0.0
    interrupted: bool = False
    seconds: float = 0.0


OnSave = Callable[[Imatrix, int], None]
"""Called with what there is so far, and the number of chunks."""


def collect(
    model: Model,
    text: str | bytes | Sequence[int],
    *,
    dataset: str = "",
    n_ctx: int = 512,
    chunks: int = -1,
    skip: int = 0,
    process_output: bool = False,
    parse_special: bool = False,
    with_ppl: bool = True,
    before: Sequence[Imatrix] = (),
    on_chunk: OnChunk | None = None,
    on_save: OnSave | None = None,
    save_every: int = 0,
    **options: Any,
) -> Collected:
    """Collect importances over a text (or token ids).

    skip        chunks left out at the start
    with_ppl    measure perplexity, too
    before      matrices to add to
    on_save     called every `save_every` chunks
    options     n_batch, n_ubatch, and those of a Context

    An interruption (Ctrl-C, an abort) ends it with what was collected of whole batches so far, or
    goes through if that is nothing. LlamapyError for a text of less than two chunks.
    """
    ids: Sequence[int] | Ids
    if isinstance(text, str | bytes):
        ids = tokens_of(model, text, parse_special=parse_special)
    else:
        ids = text
    parts = cut(ids, n_ctx, chunks, skip=skip)
    collector, totals = Collector(process_output), Totals()
    evaluator = Evaluator(model, n_ctx, full=process_output, observer=collector, **options)
    interrupted, done = False, 0

    def so_far() -> Imatrix:
        mine = collector.imatrix(dataset, done, n_ctx)
        return merge([*before, mine]) if before else mine

    with Rows(evaluator.threads) as rows, evaluator.clock as clock:
        try:
            for piece in evaluator.run(parts):
                if with_ppl:
                    totals.add(rows.nll(piece.logits, piece.targets), last=piece.last)
                done += piece.last
                if not piece.last:
                    continue
                if on_chunk is not None and with_ppl:
                    on_chunk(totals.chunks[-1], len(parts))
                if on_save is not None and save_every and done % save_every == 0:
                    on_save(so_far(), done)
        except (KeyboardInterrupt, Aborted):
            if not done:
                raise
            interrupted = True
    ppl = totals.chunks[-1].running if totals.chunks else 0.0
    error = totals.error * ppl if totals.chunks else 0.0
    return Collected(so_far(), ppl, error, interrupted, clock.seconds)
