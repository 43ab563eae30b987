"""One file is a whole architecture: that of docs/adding-an-architecture.md, dropped in."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import llamapy.archs
from llamapy.convert import architectures
from llamapy.runtime.batch import Batch
from llamapy.runtime.context import Context
from llamapy.runtime.model import Model
from llamapy.tasks import convert, quantize
from tests.convert import folders

PAGE = Path(__file__).parents[2] / "docs" / "adding-an-architecture.md"
MOST_LINES = 120


@pytest.fixture
def dropped_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The page's example as archs/capped.py; its text."""
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    (tmp_path / "capped.py").write_text(found[1])
    monkeypatch.setattr(llamapy.archs, "__path__", [*llamapy.archs.__path__, str(tmp_path)])
    architectures.by_class.cache_clear()
    yield found[1]
    sys.modules.pop("llamapy.archs.capped", None)
    architectures.by_class.cache_clear()


def folder_of(tmp_path: Path, limit: float) -> Path:
    """A tiny model of the new kind: gemma's weights and vocabulary, other classes."""
    folder = folders.assemble("llama-yarn", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["CappedForCausalLM"], "limit": limit, "rope_parameters": None}
    (folder / "config.json").write_text(json.dumps(config))
    stored = folders.read_safetensors(folder / "model.safetensors")
    for name, (dtype, values) in stored.items():
        if "norm" in name:
            stored[name] = ("F32", folders.floats(dtype, values) - 1)
    folders.write_safetensors(folder / "model.safetensors", stored)
    return folder


def logits(path: str) -> np.ndarray:
    context = Context(Model(path), n_ctx=32, backend="reference", type_k="f32", type_v="f32")
    return context.decode(Batch([5, 6, 7, 8], outputs="all"))


def test_found_converted_run_and_quantized(dropped_in: str, tmp_path: Path) -> None:
    assert len(dropped_in.splitlines()) <= MOST_LINES
    out = tmp_path / "capped.gguf"
    options = convert.Options(outtype="f32", output=out)
    (path,) = convert.run(convert.prepare(folder_of(tmp_path, 0.5), options))
    model = Model(path)
    assert (model.arch, model.metadata["capped.ffn_limit"]) == ("capped", 0.5)
    limited = logits(path)
    assert np.isfinite(limited).all()
    with quantize.prepare(path, "q8_0") as job:
        (small,) = quantize.run(job, tmp_path / "small.gguf")
    error = np.abs(logits(small) - limited).max() / np.abs(limited).max()
    assert 0 < error < 0.1
    assert "".join(model.generate("The sky", n_predict=3, context=model.context(n_ctx=64))) != ""


def test_the_cap_matters(dropped_in: str, tmp_path: Path) -> None:
    made = []
    for limit in (0.5, 50.0):
        own = tmp_path / str(limit)
        own.mkdir()
        options = convert.Options(outtype="f32", output=own / "m.gguf")
        made += convert.run(convert.prepare(folder_of(own, limit), options))
    assert not np.allclose(*map(logits, made), rtol=0.01)
