"""Files are, byte for byte, those that convert_hf_to_gguf.py makes of the same folders."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from llamapy.tasks import convert
from tests.convert import folders

# Upstream cannot convert these (docs/convert.md says why), so there is nothing to be equal to.
WITHOUT = {"gptneox", "gptneox-serial", "baichuan", "baichuan-13b", "nomic-bert"}


# The same keys in another order; a CamemBERT as if it were a BERT (docs/convert.md).
OTHER = {"bert-distilled", "bert-camembert"}


@pytest.mark.golden
@pytest.mark.parametrize("kind", ["f16", "q8_0"])
@pytest.mark.parametrize("case", folders.CASES)
def test_same_bytes(case: str, kind: str, tmp_path: Path) -> None:
    want = folders.facts(case)["sha256"][kind]
    out = tmp_path / "out.gguf"
    options = convert.Options(outtype=kind, output=out)
    convert.run(convert.prepare(folders.assemble(case, tmp_path), options))
    if want is None:
        assert case in WITHOUT
        return
    assert (hashlib.sha256(out.read_bytes()).hexdigest() == want) is (case not in OTHER)


def test_upstream_converts_what_must_be_equal() -> None:
    """The families that the comparison is promised for are in it."""
    equal = {case for case in folders.CASES if folders.facts(case)["sha256"]["f16"]}
    assert equal >= {"llama", "qwen2", "qwen3", "gemma3", "phi3", "gpt2", "bert", "mixtral"}
    assert set(folders.CASES) - equal == WITHOUT
