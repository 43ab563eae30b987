"""Which GGUF tensors a checkpoint becomes, in which order, and how each is made.

The architecture file says where its tensors come from (NAMES, EXTRA), and its trace which there
must be; what is left of the checkpoint without a place is an error, not silence. Only headers are
read here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from llamapy.convert.checkpoint import Checkpoint
from llamapy.convert.safetensors import to_floats
from llamapy.core.errors import ModelError, ShapeError
from llamapy.core.log import log
from llamapy.gguf.limits import shown
from llamapy.nn.hf import Fold, Way
from llamapy.nn.params import Params
from llamapy.nn.trace import trace
from llamapy.nn.weights import Shape, same_shape, wrong_shape

Array = np.ndarray[Any, Any]

PIECE = 1 << 20  # values that are read at a time
ENDINGS = {".weight": ".weight", ".bias": ".bias", ".gamma": ".weight", ".beta": ".bias"}
FLOATS = ("F32", "F16", "BF16")

# What no text model computes with: buffers, and the other halves of multimodal models.
_DROPPED = re.compile(
    r"(\.attention\.masked_bias|\.attention\.bias|\.attn\.bias|\.attn\.masked_bias"
    r"|rotary_emb\.inv_freq|position_ids)$"
    r"|^(visual|vision_tower|vision_model|multi_modal_projector|audio_tower|model\.visual"
    r"|model\.vision_tower|model\.multi_modal_projector)\."
)


class Stored(Protocol):
    """A tensor of a checkpoint, or what stands for several of them (quantized weights)."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...

    def read(self, first: int = 0, last: int | None = None) -> Array: ...


@dataclass(frozen=True)
class Tensor:
    """One tensor to be written.

    ne     sizes, innermost first
    dtype  what `pieces` gives: "F32", "F16", or "BF16" as bits in uint16
    pieces  rows in order, [n, ne[0]] each
    """

    name: str
    ne: Shape
    dtype: str
    pieces: Callable[[], Iterator[Array]]

    @property
    def n_elements(self) -> int:
        return prod(self.ne)


@dataclass(frozen=True)
class _Origin:
    """Where a GGUF tensor comes from: names in the checkpoint, in the order the fold wants."""

    way: Way
    sources: tuple[str, ...]


def plan(
    checkpoint: Checkpoint, arch: ModuleType, params: Params, sources: Mapping[str, Stored]
) -> list[Tensor]:
    """All tensors in the order of the file. ModelError if some are missing or have no place."""
    where = str(checkpoint.folder)
    known = _Known(arch, params, sources)
    origins = known.origins()
    made = extra(arch, params, checkpoint.config)
    there = set(origins) | set(made)
    needed = trace(arch, params, optional=there.__contains__).shapes
    _check_all_there(where, needed, there, known)
    tensors = [_generated(name, values, needed, where) for name, values in made.items()]
    last = {name: max(known.order[s] for s in o.sources) for name, o in origins.items()}
    rank = {name: i for i, name in enumerate(origins)}
    for name in sorted(origins, key=lambda n: (last[n], rank[n])):
        if name not in needed:
            raise ModelError(f"{where}: {name} is no tensor of {params.arch}")
        inputs = [known.sources[s] for s in origins[name].sources]
        if not _same_as_embeddings(name, inputs, checkpoint, known, where):
            tensors.append(_tensor(name, needed[name], origins[name].way, inputs, params, where))
    return tensors


def extra(arch: ModuleType, params: Params, config: Mapping[str, Any]) -> dict[str, Array]:
    """Tensors that the architecture makes of the configuration alone."""
    make = getattr(arch, "EXTRA", None)
    found: dict[str, Array] = make(params, config) if make else {}
    return found


def embedding_rows(arch: ModuleType, sources: Mapping[str, Stored]) -> int | None:
    """How many tokens the embeddings have; None if there are none."""
    wanted = _first_source(arch.NAMES["token_embd"]) + ".weight"
    rows = (one.shape[0] for name, one in sources.items() if wanted in _spellings(name))
    return next(rows, None)


def _spellings(name: str) -> tuple[str, str, str]:
    """A tensor's name as it may stand in the architecture's file: checkpoints differ in the name of
    the whole model in front."""
    plain = name.replace("language_model.", "")
    return plain, f"model.{plain}", plain.partition(".")[2]


class _Known:
    """The checkpoint's tensors under the names that the architecture knows."""

    def __init__(self, arch: ModuleType, params: Params, sources: Mapping[str, Stored]) -> None:
        self.arch, self.params = arch, params
        self.names: dict[str, Any] = arch.NAMES
        self.stems = self._stems()
        dropped = tuple(getattr(arch, "DROPPED", ()))
        self.unused = re.compile("|".join(dropped)) if dropped else None
        self.sources: dict[str, Stored] = {}
        self.unknown: list[str] = []
        for name, one in sources.items():
            if _DROPPED.search(name):
                continue
            found = self._canonical(name)
            if found is None:
                self._set_aside(name)
            elif found in self.sources:
                raise ModelError(
                    f"{shown(name)} and {shown(self.sources[found].name)} are the same"
                )
            else:
                self.sources[found] = one
        self.order = {name: i for i, name in enumerate(self.sources)}

    def _stems(self) -> set[str]:
        """All names without endings that the architecture knows, layers and experts filled in."""
        ways = [w for s in self.names.values() for w in (s if isinstance(s, tuple) else (s,))]
        found: set[str] = set()
        for way in ways:
            for source in way.sources if isinstance(way, Fold) else (way,):
                found.update(_filled(source, self.params))
        return found

    def _canonical(self, name: str) -> str | None:
        """The stem and ".weight" or ".bias" under which the architecture knows `name`."""
        for shape in _spellings(name):
            stem, dot, last = shape.rpartition(".")
            ending = ENDINGS.get(dot + last)
            if ending and stem in self.stems:
                return stem + ending
            if shape in self.stems:
                return shape + ".weight"
            if shape.endswith("_bias") and shape[: -len("_bias")] in self.stems:
                return shape[: -len("_bias")] + ".bias"
        return None

    def _set_aside(self, name: str) -> None:
        if self.unused and self.unused.search(name):
            return
        layer = re.search(r"(?:layers|layer|h)\.(\d+)\.", name)
        if layer and int(layer[1]) >= self.params.n_layer:
            log.warning("%s is beyond the last layer and left out", name)
            return
        self.unknown.append(name)

    def origins(self) -> dict[str, _Origin]:
        """{GGUF tensor: where from} of all that the checkpoint has, in the order of NAMES."""
        found: dict[str, _Origin] = {}
        used: set[str] = set()
        for pattern, ways in self.names.items():
            for i in range(self.params.n_layer) if "{i}" in pattern else (0,):
                for ending in (".weight", ".bias"):
                    origin = self._origin(ways, i, ending)
                    if origin is not None:
                        found[pattern.replace("{i}", str(i)) + ending] = origin
                        used.update(origin.sources)
        left = [n for n in self.sources if n not in used] + self.unknown
        if left:
            names = ", ".join(map(shown, left[:5]))
            more = f" and {len(left) - 5} more" if len(left) > 5 else ""
            raise ModelError(
                f"{len(left)} tensors have no place in {self.params.arch}: {names}{more}",
                hint="is this another model than its config.json says?",
            )
        return found

    def _origin(self, ways: Any, layer: int, ending: str) -> _Origin | None:
        for way in ways if isinstance(ways, tuple) else (ways,):
            patterns = way.sources if isinstance(way, Fold) else (way,)
            sources = [
                name + ending
                for p in patterns
                for name in _filled(p.replace("{i}", str(layer)), self.params)
            ]
            if sources and all(s in self.sources for s in sources):
                return _Origin(way, tuple(sources))
        return None


def _filled(pattern: str, params: Params) -> list[str]:
    """The names that a pattern with {i} and {e} stands for."""
    layers = range(params.n_layer) if "{i}" in pattern else (0,)
    experts = range(params.n_expert) if "{e}" in pattern else (0,)
    return [pattern.replace("{i}", str(i)).replace("{e}", str(e)) for i in layers for e in experts]


def _check_all_there(
    where: str, needed: Mapping[str, Shape], there: set[str], known: _Known
) -> None:
    missing = [name for name in needed if name not in there]
    if not missing:
        return
    texts = []
    for name in missing[:5]:
        pattern = re.sub(r"blk\.\d+\.", "blk.{i}.", name.rpartition(".")[0])
        way = known.names.get(pattern, "nowhere")
        way = way[0] if isinstance(way, tuple) else way
        source = way.sources[0] if isinstance(way, Fold) else way
        texts.append(f"{name} (from {source})")
    more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    raise ModelError(
        f"{where}: {len(missing)} of {len(needed)} tensors are missing: {', '.join(texts)}{more}",
        hint="is the download complete?",
    )


def _same_as_embeddings(
    name: str, inputs: Sequence[Stored], checkpoint: Checkpoint, known: _Known, where: str
) -> bool:
    """Whether this is an output matrix that is declared to be the embeddings, and is."""
    if name != "output.weight" or not checkpoint.config.get("tie_word_embeddings"):
        return False
    table = known.sources.get(_first_source(known.names["token_embd"]) + ".weight")
    (head,) = inputs
    if table is None or table.shape != head.shape or table.dtype != head.dtype:
        equal = False
    else:
        step = max(1, PIECE // head.shape[-1])
        n = head.shape[0]
        equal = all(
            np.array_equal(
                table.read(i, min(i + step, n)).view("u1"),
                head.read(i, min(i + step, n)).view("u1"),
            )
            for i in range(0, n, step)
        )
    if not equal:
        log.warning(
            "%s: %s is said to be the embeddings but is not: it is kept", where, inputs[0].name
        )
    return equal


def _first_source(ways: Any) -> str:
    way = ways[0] if isinstance(ways, tuple) else ways
    return way.sources[0] if isinstance(way, Fold) else way


def _generated(name: str, values: Array, needed: Mapping[str, Shape], where: str) -> Tensor:
    if name not in needed:
        raise ModelError(f"{where}: {name} is made, but nobody asks for it")
    if not same_shape(values.shape[::-1], needed[name]):
        raise wrong_shape(where, name, values.shape[::-1], needed[name])
    rows = np.ascontiguousarray(values, np.float32).reshape(-1, values.shape[-1])
    return Tensor(name, values.shape[::-1], "F32", lambda: iter((rows,)))


def _tensor(
    name: str, ne: Shape, way: Way, inputs: Sequence[Stored], params: Params, where: str
) -> Tensor:
    kinds = {one.dtype for one in inputs}
    kind = kinds.pop() if len(kinds) == 1 else "F32"
    if isinstance(way, str):
        (one,) = inputs
        got = one.shape[::-1]
        if not same_shape(got, ne):
            raise ShapeError(
                f"{where}: tensor {one.name!r} has shape {list(one.shape)}, {name} needs"
                f" {list(ne[::-1])}",
                hint="config.json does not fit the tensors",
            )
        given = kind if kind in FLOATS else "F32"
        return Tensor(name, got, given, lambda: _plain(one))
    given = kind if kind in ("F32", "F16") or (kind == "BF16" and way.moves) else "F32"

    def folded() -> Iterator[Array]:
        arrays = [_values(one, given) for one in inputs]
        made = way.make(arrays, params)
        del arrays
        if not same_shape(made.shape[::-1], ne):
            raise wrong_shape(where, name, made.shape[::-1], ne)
        yield from _by_rows(np.ascontiguousarray(made))

    return Tensor(name, ne, given, folded)


def _values(one: Stored, given: str) -> Array:
    """A whole tensor as `given`, which is its own type or F32."""
    stored = one.read()
    if one.dtype == given:
        return stored
    values = to_floats(stored, one.dtype)
    return values.astype(np.float32) if given == "F32" else values


def _plain(one: Stored) -> Iterator[Array]:
    width = one.shape[-1] if one.shape else 1
    n_rows = prod(one.shape[:-1])
    step = max(1, PIECE // max(1, width))
    for first in range(0, n_rows, step):
        rows = one.read(first, min(first + step, n_rows)).reshape(-1, width)
        yield rows if one.dtype in FLOATS else to_floats(rows, one.dtype)


def _by_rows(whole: Array) -> Iterator[Array]:
    rows = whole.reshape(-1, whole.shape[-1] if whole.ndim else 1)
    step = max(1, PIECE // max(1, rows.shape[1]))
    for first in range(0, len(rows), step):
        yield rows[first : first + step]
