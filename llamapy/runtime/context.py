"""A context: one thread's work with a model. Memory of sequences, compute buffers, backends,
compiled graphs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Thread
from time import perf_counter, sleep
from typing import Any, Protocol
from weakref import finalize

import numpy as np

from llamapy.backend.backend import Backend
from llamapy.core.errors import Aborted, BatchError, ContextFullError, UsageError
from llamapy.core.log import log
from llamapy.engine import Engine, Execution
from llamapy.graph import Builder, Graph, Tensor
from llamapy.nn.cache import Layer
from llamapy.nn.step import Step
from llamapy.runtime import backends
from llamapy.runtime.batch import Batch, Tokens, check
from llamapy.runtime.memory.cells import Ints
from llamapy.runtime.memory.kv import KV
from llamapy.runtime.memory.memory import Memory, NoMemory
from llamapy.runtime.memory.window import Windows
from llamapy.runtime.model import Model
from llamapy.runtime.results import Floats, Reader, Results, reader

Array = np.ndarray[Any, Any]
FLASH = {"auto": None, "on": True, "off": False, True: True, False: False}
KEPT = 16  # compiled graphs


@dataclass
class Compiled:
    """A graph that can run: its inputs by name, and where its results are."""

    inputs: dict[str, Tensor]
    execution: Execution
    logits: Reader | None = None
    hidden: Reader | None = None
    kept: dict[str, Tensor] = field(default_factory=dict)


class Observer(Protocol):
    """Looks at intermediate results.

    whole: whether the last layer computes every row, not only those whose logits are wanted
    """

    whole: bool

    def choose(self, g: Step) -> None:
        """Add to the graph (`g.keep`) what is to be seen; called once for each kind of ubatch."""

    def see(self, part: Tokens, values: Callable[[str], Array]) -> None:
        """Called after each ubatch: values("name") is what was kept under that name, shape
        ne[::-1]."""


class Context:
    """Decodes batches. Belongs to one thread at a time; a Model may have many.

    n_ctx        positions that fit; 0 takes what the model was trained with
    n_batch      tokens in one `decode` at most
    n_ubatch     tokens computed at once at most
    n_seq_max    sequences side by side
    type_k, type_v   types of the caches: f16, f32, bf16, q8_0
    flash_attn   "auto", True ("on") or False ("off"): attention as one op
    threads      of the CPU backend; None is what this process may use
    embeddings   keep hidden states of the outputs too (`embeddings`)
    n_outputs_max  outputs of one ubatch that memory is reserved for; more make it grow
    activation_bits  8, or 16 for exacter prefill; None: the setting LLAMAPY_ACTIVATIONS
    backend      what computes all that is not on the model's device
    on_compile   called with (kernel, done, total) while kernels are compiled
    observer     sees intermediate results of every ubatch
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int = 0,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_seq_max: int = 1,
        type_k: str = "f16",
        type_v: str = "f16",
        flash_attn: str | bool = "auto",
        threads: int | None = None,
        embeddings: bool = False,
        n_outputs_max: int = 1,
        activation_bits: int | None = None,
        backend: str = backends.HOST,
        on_compile: Callable[[str, int, int], None] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.observer = observer
        self.model, self.n_seq_max, self.keep_hidden = model, n_seq_max, embeddings
        self.n_ctx = n_ctx or model.params.n_ctx_train
        if self.n_ctx > model.params.n_ctx_train:
            trained = model.params.n_ctx_train
            log.warning("a context of %d, but the model was trained with %d", self.n_ctx, trained)
        _positive(n_ctx=self.n_ctx, n_batch=n_batch, n_ubatch=n_ubatch, n_seq_max=n_seq_max)
        self.n_batch = min(n_batch, self.n_ctx)
        self.n_ubatch = min(n_ubatch, self.n_batch)
        options = {"threads": threads, "repack": model.repack, "on_compile": on_compile}
        options["activation_bits"] = activation_bits
        self._host = backends.make(backend, **options)
        self._device = backends.make(model.device, **options) if model.device else None
        self.engine = Engine([b for b in (self._device, self._host) if b is not None])
        self._end = finalize(self, _close, self.engine.backends)
        traced = model.trace(self.n_ctx)
        self.memory = self._make_memory(traced.layers, (type_k, type_v))
        worst = self._choose_flash(flash_attn, n_outputs_max)
        self._compiled: OrderedDict[Any, Compiled] = OrderedDict()
        self._moves = 0  # of memory, when those were compiled
        self._stop = self._busy = False
        self.compiling = False  # whether kernels are being compiled, which hears no abort
        self.n_reused = 0  # how often a compiled graph was used again
        self.compile_seconds = 0.0  # spent on making graphs and compiling them
        self.results = Results(traced.output.ne[0], model.params.n_embd)
        self._reserve(worst)

    def _make_memory(self, layers: Sequence[Layer], kinds: tuple[str, str]) -> Memory:
        if not layers or not self.model.params.causal:
            return NoMemory(layers, self.n_seq_max)
        facts: dict[str, Any] = {
            "n_seq_max": self.n_seq_max,
            "kinds": kinds,
            "place": self._backend_of,
        }
        if any(layer.window for layer in layers):
            return Windows(layers, n_cells=self.n_ctx, n_ubatch=self.n_ubatch, **facts)
        return KV(layers, n_cells=self.n_ctx, **facts)

    def _backend_of(self, layer: int) -> Backend:
        on_device = self._device is not None and layer >= self.model.first_on_device
        return self._device if on_device and self._device is not None else self._host

    def _choose_flash(self, wanted: str | bool, n_outputs: int) -> Step:
        """Decide on flash attention; the worst graph, which had to be made for that."""
        if wanted not in FLASH:
            raise UsageError(f"flash attention is {wanted!r}, not on, off or auto")
        self.flash = FLASH[wanted] is not False
        worst = self._worst(n_outputs)
        if FLASH[wanted] is not None:
            return worst
        nodes = [n for n in worst.graph.nodes if n.op is not None and n.op.name == "flash_attn"]
        self.flash = all(any(b.supports_op(n) for b in self.engine.backends) for n in nodes)
        return worst if self.flash else self._worst(n_outputs)

    def _worst(self, n_outputs: int) -> Step:
        """The graph of the largest ubatch with so many outputs."""
        sizes = self.memory.worst()
        return self._record(self.n_ubatch, min(n_outputs, self.n_ubatch), sizes)[0]

    def reserve(self, n_outputs: int) -> None:
        """Make the compute buffers large enough for the largest ubatch with so many outputs."""
        self._reserve(self._worst(n_outputs))

    def _reserve(self, worst: Step) -> None:
        self.engine.reserve(worst.graph)
        sizes = self.memory.n_bytes / 2**20, self.engine.n_bytes / 2**20
        log.info("context of %d: memory %.1f MiB, compute buffers %.1f MiB", self.n_ctx, *sizes)

    @property
    def n_compute_bytes(self) -> int:
        """Bytes of the compute buffers."""
        return self.engine.n_bytes

    # -- graphs

    def _record(
        self, n_tokens: int, n_outputs: int, sizes: tuple[int, ...], *, embeddings: bool = False
    ) -> tuple[Step, Tensor]:
        """The graph of a ubatch, and its result (not computed if no output is wanted)."""
        g = Step(
            n_tokens=n_tokens,
            n_outputs=n_outputs,
            n_ctx=self.n_ctx,
            cache=self.memory.view(sizes),
            flash=self.flash,
            embeddings=embeddings,
            whole=self.observer is not None and self.observer.whole,
        )
        logits = self.model.module.build(g, self.model.weights, self.model.params)
        if n_outputs:
            g.graph.output(logits)
            if self.keep_hidden:
                g.graph.output(g.taps.get("result_norm", logits))
        if self.observer is not None:
            self.observer.choose(g)
        return g, logits

    def _compile(self, part: Tokens, sizes: tuple[int, ...]) -> Compiled:
        """The compiled graph for ubatches like this one, made at the first of its kind."""
        if self._moves != self.memory.n_moves:
            self._moves = self.memory.n_moves
            self._compiled.clear()
        key = (len(part), part.n_outputs, sizes, part.ids is None)
        found = self._compiled.get(key)
        if found is not None:
            self._compiled.move_to_end(key)
            self.n_reused += 1
            return found
        start, self.compiling = perf_counter(), True
        try:
            return self._make(key, part, sizes)
        finally:
            self.compile_seconds += perf_counter() - start
            self.compiling = False

    def _make(self, key: Any, part: Tokens, sizes: tuple[int, ...]) -> Compiled:
        g, logits = self._record(len(part), part.n_outputs, sizes, embeddings=part.ids is None)
        execution = self.engine.prepare(g.graph)
        made = Compiled(_used(g), execution, kept=g.kept)
        if part.n_outputs:
            made.logits = reader(execution, logits, part.n_outputs)
            if self.keep_hidden:
                hidden = g.taps.get("result_norm", logits)
                made.hidden = reader(execution, hidden, part.n_outputs)
        self._compiled[key] = made
        if len(self._compiled) > KEPT:
            self._compiled.popitem(last=False)
        return made

    def graph(self, n_tokens: int) -> Graph:
        """The graph of a ubatch of so many tokens, for looking at: it has no memory."""
        n_tokens = min(n_tokens, self.n_ubatch)
        return self._record(n_tokens, 1, self.memory.worst())[0].graph

    def prepare(self) -> None:
        """Compile what decoding one token more will need, so that no pause falls into an answer."""
        one = np.zeros(1, np.int32)
        seqs = np.zeros((1, self.n_seq_max), np.bool_)
        wanted = np.ones(1, np.bool_)
        self._compile(
            Tokens(one, None, one, seqs, np.zeros(1, np.int64), wanted), self.memory.sizes()
        )

    # -- decoding

    def decode(self, batch: Batch | Sequence[int] | Ints, *, copy: bool = True) -> Floats:
        """Compute a batch (or a list of token ids that goes on with sequence 0) and remember it.

        Gives the logits of the wanted outputs in the order of the batch, float32 [n_outputs,
        n_vocab]; with copy=False a view that the next decode writes over. BatchError,
        ContextFullError and Aborted leave memory as it was.
        """
        tokens = self._check(batch if isinstance(batch, Batch) else Batch(batch))
        self.settle()
        parts = list(tokens.parts(self.n_ubatch))
        slots = self.memory.plan(parts)
        if slots is None:
            used = max((kv.cells.n_used for kv in self.memory.caches()), default=0)
            raise ContextFullError(
                f"{len(tokens)} tokens do not fit: of the context's {self.n_ctx} positions "
                f"{used} are taken"
            )
        saved, done = self.memory.save(), []
        self._busy = True
        try:
            n = tokens.n_outputs
            self.results.start(len(parts), n, n if self.keep_hidden else 0)
            for part, slot in zip(parts, slots):
                done.append(slot)
                self.memory.put(part, slot)
                compiled = self._run(part, slot)
                self.results.add(compiled.logits, compiled.hidden)
        except BaseException:
            self.memory.restore(saved, done)
            raise
        finally:
            self._busy = self._stop = False
        return self.logits.copy() if copy else self.logits

    def _check(self, batch: Batch) -> Tokens:
        p = self.model.params
        tokens = check(
            batch, self.memory, n_vocab=p.n_vocab, n_embd=p.n_embd, n_seq_max=self.n_seq_max
        )
        most = self.n_ubatch if isinstance(self.memory, NoMemory) else self.n_batch
        if len(tokens) > most:
            raise BatchError(f"a batch of {len(tokens)} tokens; at most {most} fit")
        return tokens

    def _run(self, part: Tokens, slot: Any) -> Compiled:
        sizes = self.memory.sizes()
        compiled = self._compile(part, sizes)
        values: dict[str, Any] = self.memory.values(part, slot, sizes) | {"positions": part.pos}
        if part.ids is not None:
            values["tokens"] = part.ids
        else:
            values["embeddings"] = part.embeddings
        if 0 < part.n_outputs < len(part):
            values["out_ids"] = np.flatnonzero(part.wanted)
        for name, tensor in compiled.inputs.items():
            compiled.execution.set(tensor, values[name])
        if self._stop:
            raise Aborted("the computation was interrupted")
        compiled.execution.run()
        if self.observer is not None:
            self.observer.see(part, lambda name: compiled.execution.get(compiled.kept[name]))
        return compiled

    @property
    def logits(self) -> Floats:
        """The last decode's logits, float32 [n_outputs, n_vocab]; a view until the next."""
        return self.results.logits

    @property
    def embeddings(self) -> Floats:
        """Hidden states after the final norm of the last decode's outputs, float32 [n_outputs,
        n_embd]."""
        if not self.keep_hidden:
            raise UsageError("the context was made without embeddings=True")
        return self.results.hidden

    def close(self) -> None:
        """End the backends' threads. Happens by itself when the context is no longer used."""
        self._end()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def abort(self) -> None:
        """Make the decode under way end soon with Aborted; nothing if there is none. From any
        thread."""
        if not self._busy:
            return
        self._stop = True
        self.engine.abort()
        # A program that is about to start has not seen it yet: say it until it is heard.
        Thread(target=self._keep_aborting, daemon=True).start()

    def _keep_aborting(self) -> None:
        while self._busy and self._stop:
            self.engine.abort()
            sleep(0.005)

    # -- moving positions

    def settle(self) -> None:
        """Turn the keys of cells whose positions have been moved since they were stored."""
        for kv in self.memory.caches():
            if not kv.cells.moved:
                continue
            self.results.detach()
            moved = np.flatnonzero(kv.cells.delta)
            for start in range(0, len(moved), self.n_ubatch):
                self._turn(kv, moved[start : start + self.n_ubatch])
            kv.cells.delta[moved] = 0
            kv.cells.moved = False

    def _turn(self, kv: KV, cells: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        g = Builder()
        kv.turn_keys(g, len(cells))
        if not g.graph.nodes:
            return
        execution = self.engine.prepare(g.graph)
        for name, values in (("ids", cells), ("deltas", kv.cells.delta[cells])):
            execution.set(g.inputs[f"{kv.name}.turn_{name}"], values)
        execution.run()


def _close(all_backends: Sequence[Backend]) -> None:
    for backend in all_backends:
        getattr(backend, "close", lambda: None)()


def _used(g: Builder) -> dict[str, Tensor]:
    """The inputs that the graph reads: some belong to parts that are not computed."""
    leafs = {id(leaf) for leaf in g.graph.leafs}
    return {name: tensor for name, tensor in g.inputs.items() if id(tensor) in leafs}


def _positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise UsageError(f"{name} is {number}, but must be at least 1")
