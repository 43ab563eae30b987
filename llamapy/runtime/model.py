"""A model: a GGUF file whose metadata and tensors have been checked, ready to be computed with.

Read-only and shared: any number of contexts, in any threads, may use one Model at a time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any

from llamapy.core import discover
from llamapy.core.errors import ModelError, UsageError
from llamapy.core.log import log
from llamapy.gguf import keys
from llamapy.gguf.metadata import Metadata
from llamapy.gguf.split import open_split
from llamapy.nn.params import Params
from llamapy.nn.trace import Trace, trace
from llamapy.nn.weights import Loaded, Weights, compare
from llamapy.quants import codec
from llamapy.runtime import backends
from llamapy.runtime.placement import Placement

if TYPE_CHECKING:
    from llamapy.graph import Tensor
    from llamapy.runtime.context import Context
    from llamapy.runtime.forward import Forward
    from llamapy.runtime.generate import Generation
    from llamapy.runtime.logprobs import Scored
    from llamapy.tokenizers.tokenizer import Tokenizer

MAX_LAYERS = 4096


class Model:
    """Open `path` (any part of a split set).

    mmap          map the file instead of reading it
    n_gpu_layers  how many of the last layers go to `device`; the output counts as the layer after
                  the last block
    device        name of a backend ("reference" is always there)
    repack        whether the CPU may copy the weights to where it reads them faster (large pages)

    FileFormatError for a broken file; ModelError (ShapeError, TokenizerError) for one that is sound
    but cannot be used: an unknown architecture, missing tensors, keys or shapes that do not fit
    each other.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mmap: bool = True,
        n_gpu_layers: int = 0,
        device: str | None = None,
        repack: bool = True,
    ) -> None:
        self.path = os.fspath(path)
        self.repack = repack
        self.device = _device(device, n_gpu_layers)
        with open_split(path, mmap=mmap, type_sizes=codec.type_sizes) as file:
            self.metadata: Metadata = file.metadata
            self.arch = _architecture(self.metadata, self.path)
            self.module = _module(self.arch, self.path)
            self.params: Params = self._read_params(len(file.tensors))
            needed = trace(self.module, self.params, optional=file.__contains__).shapes
            found = {info.name: tuple(info.ne) for info in file.tensors}
            unused = compare(needed, found, self.path)
            self.first_on_device = max(0, self.params.n_layer + 1 - max(0, n_gpu_layers))
            placement = Placement(self.first_on_device, self.device, self.params.n_layer)
            self.tensors: dict[str, Tensor] = placement.load(file, needed, copy=mmap and repack)
        if unused:
            log.warning(
                "%s: %d tensors are not used: %s", self.path, len(unused), ", ".join(unused[:5])
            )
        self.weights = Weights(Loaded(self.tensors, self.path))
        self._tokenizer: Tokenizer | None = None
        self._lock = Lock()

    def _read_params(self, n_tensors: int) -> Params:
        n_vocab = _vocabulary_size(self.metadata, self.arch, self.path)
        made: Params = self.module.Params.from_metadata(
            self.metadata, arch=self.arch, n_vocab=n_vocab, where=self.path
        )
        if made.n_layer > min(n_tensors, MAX_LAYERS):
            name = keys.of(self.arch, "block_count")
            raise ModelError(
                f"{self.path}: {name} is {made.n_layer}, but the file has {n_tensors} tensors"
            )
        return made

    @property
    def n_vocab(self) -> int:
        return self.params.n_vocab

    @property
    def n_params(self) -> int:
        """Weights in all tensors."""
        return sum(t.n_elements for t in self.tensors.values())

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.n_bytes for t in self.tensors.values())

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, loaded at the first use. TokenizerError if the vocabulary cannot
        be used."""
        with self._lock:
            if self._tokenizer is None:
                from llamapy.tokenizers import tokenizer

                self._tokenizer = tokenizer.load(self.metadata)
            return self._tokenizer

    def tokenize(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids of `text`.

        add_special    put BOS and EOS where the model wants them
        parse_special  let "<|im_end|>" and the like mean the token; leave it off for text from
                       others
        """
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of token ids; bytes that are not UTF-8 become U+FFFD. special: show control
        tokens."""
        return self.tokenizer.decode(ids, special=special).decode("utf-8", "replace")

    def context(self, **options: Any) -> Context:
        """A new Context of this model; options as there."""
        from llamapy.runtime.context import Context

        return Context(self, **options)

    def generate(
        self, prompt: str | Sequence[int], *, context: Context | None = None, **options: Any
    ) -> Generation:
        """Go on from `prompt`: an iterator of pieces of text. Options as for `generate.Generation`.

        A new context is made for the call unless one is given; its memory is then used and kept.
        """
        from llamapy.runtime.generate import Generation

        return Generation(context or self.context(), prompt, **options)

    def forward(
        self, tokens: str | Sequence[int], *, capture: Sequence[str] = (), **options: Any
    ) -> Forward:
        """All logits of a text (or ids) in one pass, and the intermediate results that `capture`
        names ("blk.3.attn_q", "blk.3.out"; `llamapy.runtime.forward.names(model)` lists them)."""
        from llamapy.runtime.forward import forward

        return forward(self, tokens, capture=capture, **options)

    def logprobs(
        self, text: str | bytes | Sequence[int], *, top_k: int = 0, **options: Any
    ) -> list[Scored]:
        """The log-probability of each token of a text (or of ids), with the top_k likeliest in its
        place. Options: parse_special, and those of a Context."""
        from llamapy.runtime.logprobs import logprobs

        return logprobs(self, text, top_k=top_k, **options)

    def trace(self, n_ctx: int) -> Trace:
        """How the layers attend in a context of this size, with their frequency factors."""
        return trace(self.module, self.params, weights=self.weights, n_ctx=n_ctx)

    def __repr__(self) -> str:
        return f"<Model {self.arch} {self.n_params / 1e6:.1f} M weights, {self.path}>"


def _device(device: str | None, n_gpu_layers: int) -> str:
    """The device's name, "" if nothing goes to one."""
    if device and device not in backends.names():
        raise UsageError(
            f"there is no device {device!r}", hint=f"there are {', '.join(backends.names())}"
        )
    if n_gpu_layers > 0 and not device:
        log.warning("no device is there to take %d layers; the CPU computes them", n_gpu_layers)
    return device or "" if n_gpu_layers > 0 else ""


def _architecture(metadata: Metadata, path: str) -> str:
    name = metadata.get(keys.ARCHITECTURE)
    if not isinstance(name, str) or not name:
        raise ModelError(f"{path}: key {keys.ARCHITECTURE} is missing or not text")
    return name


def _module(arch: str, path: str) -> ModuleType:
    """The file in archs/ that has the architecture's name, "-" as "_"."""
    known = discover.names("llamapy.archs")
    name = arch.replace("-", "_")
    if name not in known:
        shown = ", ".join(n.replace("_", "-") for n in known)
        raise ModelError(
            f"{path}: architecture {arch!r} is not supported", hint=f"supported: {shown}"
        )
    return discover.load("llamapy.archs", name)


def _vocabulary_size(metadata: Metadata, arch: str, path: str) -> int:
    """How many tokens there are: the list's length, else the key vocab_size."""
    if keys.TOKENS in metadata:
        return metadata.count(keys.TOKENS)
    size = metadata.get(keys.of(arch, "vocab_size"))
    if not isinstance(size, int):
        raise ModelError(
            f"{path}: neither {keys.TOKENS} nor {keys.of(arch, 'vocab_size')} is there"
        )
    return size
