"""transformers with torch in bfloat16 as an engine of `compare_peer.py speed --torch`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any


class Torch:
    """A model read from its GGUF. Decodes one sequence. RuntimeError where torch is missing."""

    def __init__(self, path: Path, threads: int) -> None:
        try:
            import torch
            import transformers
        except ImportError as error:
            raise RuntimeError(f"--torch needs torch and transformers: {error}") from None
        self.torch = torch
        torch.set_num_threads(threads)
        load = transformers.AutoModelForCausalLM.from_pretrained
        self.model = load(path.parent, gguf_file=path.name, dtype=torch.bfloat16).eval()
        # transformers 5 gives the cache another name.
        names = inspect.signature(self.model.forward).parameters
        self.argument = "cache" if "cache" in names else "past_key_values"
        self.past: Any = None
        self.clear()

    def clear(self) -> None:
        from transformers import DynamicCache

        self.past = DynamicCache(config=self.model.config)

    def back(self, n: int) -> None:
        self.past.crop(n) if n else self.clear()

    def prefill(self, tokens: list[int], start: int) -> None:
        if tokens:
            with self.torch.inference_mode():
                ids = self.torch.tensor([tokens])
                past = {self.argument: self.past}
                self.model(ids, use_cache=True, logits_to_keep=1, **past)

    def step(self, tokens: list[int], position: int) -> None:
        self.prefill(tokens, position)
