"""Whole conversions: what lands in the file, what is refused, and that nothing is left then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

from llamapy.convert.plan import Tensor
from llamapy.core.errors import LlamapyError, ModelError, OutputError, QuantError, UsageError
from llamapy.gguf.split import open_split
from llamapy.quants import codec
from llamapy.runtime.batch import Batch
from llamapy.runtime.context import Context
from llamapy.runtime.model import Model
from llamapy.tasks import convert, convert_data, convert_types, quantize
from tests.archs import naive
from tests.convert import folders

IDS = [5, 6, 7, 8]


def converted(folder: Path, **options: Any) -> Path:
    out = folder.parent / "out.gguf"
    chosen = convert.Options(output=out, overwrite=True, **{"outtype": "f32", **options})
    return Path(convert.run(convert.prepare(folder, chosen))[0])


def tensors(path: Path) -> dict[str, np.ndarray]:
    """Values by name, as the official reader and dequantizer have them."""
    found = {}
    for one in GGUFReader(path).tensors:
        values = dequantize(one.data, one.tensor_type)
        found[one.name] = values.reshape([int(n) for n in one.shape[::-1]])
    return found


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change(folder: Path, **changes: Any) -> None:
    """Replace, add or (None) remove tensors."""
    path = folder / "model.safetensors"
    made = folders.read_safetensors(path) | {k.replace("__", "."): v for k, v in changes.items()}
    folders.write_safetensors(path, {k: v for k, v in made.items() if v is not None})


def logits(path: Path) -> np.ndarray:
    context = Context(Model(path), n_ctx=32, backend="reference", type_k="f32", type_v="f32")
    return context.decode(Batch(IDS, outputs="all"))


def test_tied(llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Declared as tied: a copy is dropped, a head that differs is kept, with a warning."""
    stored = folders.read_safetensors(llama / "model.safetensors")
    untied = converted(llama)
    own = logits(untied)
    assert np.allclose(own, naive.logits(untied, IDS), rtol=1e-4, atol=1e-4)
    edit_config(llama, tie_word_embeddings=True)
    kept = converted(llama)
    assert "output.weight" in tensors(kept)
    assert "is kept" in caplog.text
    assert np.array_equal(logits(kept), own)
    change(llama, lm_head__weight=stored["model.embed_tokens.weight"])
    copied = converted(llama)
    assert "output.weight" not in tensors(copied)
    change(llama, lm_head__weight=None)
    without = converted(llama)
    assert without.read_bytes() == copied.read_bytes()
    assert np.allclose(logits(without), naive.logits(without, IDS), rtol=1e-4, atol=1e-4)
    assert not np.allclose(logits(without), own)


ROPE = {"rope_type": "linear", "factor": 4.0}
SPELLINGS: dict[str, dict[str, Any]] = {
    "rope_parameters": {"rope_parameters": ROPE | {"rope_theta": 1e5}},
    "beside theta": {"rope_parameters": ROPE, "rope_theta": 1e5},
    "rope_scaling": {"rope_parameters": None, "rope_scaling": ROPE, "rope_theta": 1e5},
    "type": {
        "rope_parameters": None,
        "rope_scaling": {"type": "linear", "factor": 4.0},
        "rope_theta": 1e5,
    },
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_of_linear_scaling(spelling: str, llama: Path) -> None:
    edit_config(llama, **SPELLINGS[spelling])
    found = Model(converted(llama)).metadata
    assert found["llama.rope.scaling.type"] == "linear"
    assert found["llama.rope.scaling.factor"] == 4.0
    assert found["llama.rope.freq_base"] == 1e5


@pytest.mark.parametrize("where", ["rope_parameters", "rope_scaling"])
def test_spellings_of_yarn(where: str, llama: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
    yarn |= {"beta_fast": 16.0}
    edit_config(llama, **{"rope_parameters": None, "rope_theta": 1e4, where: yarn})
    found = Model(converted(llama)).metadata
    assert found["llama.rope.scaling.type"] == "yarn"
    assert found["llama.rope.scaling.original_context_length"] == 32
    assert found["llama.rope.scaling.yarn_beta_fast"] == 16.0


def test_no_scaling(llama: Path) -> None:
    edit_config(llama, rope_parameters=None, rope_scaling=None, rope_theta=1e4)
    path = converted(llama)
    assert not [key for key in Model(path).metadata if "rope.scaling" in key]
    assert "rope_freqs.weight" not in tensors(path)


def test_unknown_scaling_is_an_error(llama: Path) -> None:
    edit_config(llama, rope_parameters={"rope_type": "spiral", "factor": 2.0})
    with pytest.raises(ModelError, match="spiral"):
        convert.prepare(llama)


def test_llama3_factors(llama: Path) -> None:
    """Against the rule of Llama 3's own code."""
    found = tensors(converted(llama))["rope_freqs.weight"]
    rope = json.loads((llama / "config.json").read_text())["rope_parameters"]
    want = []
    for i in range(4):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (2 * i / 8)
        if wavelength < 32 / 4:
            want.append(1.0)
        elif wavelength > 32 / 1:
            want.append(8.0)
        else:
            smooth = (32 / wavelength - 1) / (4 - 1)
            want.append(1 / ((1 - smooth) / 8 + smooth))
    assert np.allclose(found, want, rtol=1e-6)


def test_any_type(llama: Path, tmp_path: Path) -> None:
    """A quantized type gives what quantizing the converted file gives."""
    plain, direct = tmp_path / "plain.gguf", tmp_path / "direct.gguf"
    convert.run(convert.prepare(llama, convert.Options(outtype="auto", output=plain)))
    convert.run(convert.prepare(llama, convert.Options(outtype="q4_0", output=direct)))
    with quantize.prepare(plain, "q4_0") as job:
        quantize.run(job, tmp_path / "two.gguf")
    a = open_split(direct, type_sizes=codec.type_sizes)
    b = open_split(tmp_path / "two.gguf", type_sizes=codec.type_sizes)
    with a, b:
        kinds = [[(t.name, t.type_id) for t in file.tensors] for file in (a, b)]
        assert kinds[0] == kinds[1]
        assert all(bytes(a.raw(t.name)) == bytes(b.raw(t.name)) for t in a.tensors)
        assert a.metadata["general.file_type"] == b.metadata["general.file_type"] == 2


def test_types_that_need_importances(llama: Path) -> None:
    wide = [Tensor("blk.0.ffn_up.weight", (256, 256), "F32", lambda: iter(()))]
    params = convert.prepare(llama).params
    with pytest.raises(UsageError, match=r"importance.*blk\.0\.ffn_up"):
        convert_types.choose("iq2_xxs", wide, {}, params, "x")
    with pytest.raises(UsageError, match="unknown file type"):
        convert.prepare(llama, convert.Options(outtype="q4_m_k"))


def test_auto_takes_the_type_of_the_weights(llama: Path, tmp_path: Path) -> None:
    assert convert.prepare(llama).chosen.name == "BF16"
    other = folders.assemble("qwen2", tmp_path)
    assert convert.prepare(other).chosen.name == "F16"


def test_values_arrive(llama: Path) -> None:
    stored = folders.read_safetensors(llama / "model.safetensors")
    found = tensors(converted(llama, outtype="bf16"))
    for ours, theirs in (
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.1.attn_v.weight", "model.layers.1.self_attn.v_proj.weight"),
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
    ):
        assert np.array_equal(found[ours], folders.floats(*stored[theirs]))


def test_missing_and_unknown_tensors(llama: Path) -> None:
    change(llama, model__layers__1__mlp__up_proj__weight=None)
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_up\.weight \(from .*mlp\.up_proj\)"):
        convert.prepare(llama)
    change(llama, model__layers__1__mlp__up_proj__weight=np.zeros((3, 3), np.float32))
    with pytest.raises(LlamapyError, match=r"up_proj.*\[3, 3\].*\[64, 32\]"):
        convert.prepare(llama)


def test_tensor_without_a_place(llama: Path) -> None:
    change(llama, model__layers__0__strange__weight=np.zeros(3, np.float32))
    with pytest.raises(ModelError, match="no place in llama: 'model.layers.0.strange.weight'"):
        convert.prepare(llama)


def test_what_is_left_out(llama: Path) -> None:
    """Buffers and the vision half of a multimodal checkpoint change nothing."""
    want = converted(llama).read_bytes()
    change(
        llama,
        model__layers__0__self_attn__rotary_emb__inv_freq=np.zeros(4, np.float32),
        vision_tower__encoder__weight=np.zeros((2, 2), np.float32),
    )
    assert converted(llama).read_bytes() == want


def test_nan_is_refused_when_quantized(llama: Path) -> None:
    bad = np.ones((272, 32), np.float32)
    bad[7, 9] = np.nan
    change(llama, lm_head__weight=bad)
    with pytest.raises(QuantError, match=r"output\.weight.*row 7, column 9"):
        converted(llama, outtype="q8_0")
    assert not (llama.parent / "out.gguf").exists()


def test_a_failure_leaves_nothing(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(p.name for p in llama.parent.iterdir())
    job = convert.prepare(llama, convert.Options(output=llama.parent / "out.gguf", outtype="f16"))
    calls = 0

    def fail(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 5:
            raise KeyboardInterrupt
        return original(*args)

    original = convert_data.encoded
    monkeypatch.setattr(convert_data, "encoded", fail)
    with pytest.raises(KeyboardInterrupt):
        convert.run(job)
    assert sorted(p.name for p in llama.parent.iterdir()) == before


def test_a_file_that_shrinks_while_it_is_read(llama: Path) -> None:
    job = convert.prepare(llama, convert.Options(output=llama.parent / "out.gguf"))
    path = llama / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(LlamapyError, match="truncated"):
        convert.run(job)
    assert not (llama.parent / "out.gguf").exists()


def test_outputs_are_not_overwritten(llama: Path) -> None:
    out = llama.parent / "there.gguf"
    out.write_bytes(b"mine")
    with pytest.raises(OutputError, match="exists"):
        convert.run(convert.prepare(llama, convert.Options(output=out)))
    inside = convert.Options(output=llama / "model.safetensors", overwrite=True)
    with pytest.raises(OutputError, match="is the input"):
        convert.run(convert.prepare(llama, inside))
    assert out.read_bytes() == b"mine"


@pytest.mark.parametrize("options", [{"split_max_tensors": 9}, {"split_max_size": 20_000}])
def test_split(options: dict[str, int], llama: Path) -> None:
    whole = tensors(converted(llama))
    made = convert.Options(outtype="f32", output=llama.parent / "part.gguf", **options)
    job = convert.prepare(llama, made)
    paths = convert.run(job)
    assert paths == convert.files(job)
    assert len(paths) > 2 and all("-of-" in path for path in paths)
    with open_split(paths[0], type_sizes=codec.type_sizes) as file:
        assert [t.name for t in file.tensors] == list(whole)
    with pytest.raises(UsageError):
        convert.prepare(llama, convert.Options(split_max_tensors=1, split_max_size=1))


def test_vocab_only(llama: Path) -> None:
    out = converted(llama, vocab_only=True)
    reader = GGUFReader(out)
    assert not reader.tensors
    assert len(reader.fields["tokenizer.ggml.tokens"].data) == 272


def test_names(llama: Path) -> None:
    """Into a folder the file gets the model's name; patterns get the type's."""
    job = convert.prepare(llama, convert.Options(outtype="q8_0", output=llama.parent))
    assert job.path.name == "Llama-36K-Q8_0.gguf"
    job = convert.prepare(llama, convert.Options(output=llama.parent / "m-{ftype}-{FTYPE}.gguf"))
    assert job.path.name == "m-bf16-BF16.gguf"


def test_metadata_overrides(llama: Path) -> None:
    given = llama.parent / "more.json"
    given.write_text('{"general.author": "me", "general.sampling.temp": 0.5}')
    path = converted(llama, metadata=given, model_name="Mine")
    found = Model(path).metadata
    assert (found["general.author"], found["general.name"]) == ("me", "Mine")
    assert found["general.sampling.temp"] == 0.5
    given.write_text('{"general.autor": "me"}')
    with pytest.raises(LlamapyError, match="autor"):
        convert.prepare(llama, convert.Options(metadata=given))


def test_unknown_class(llama: Path) -> None:
    edit_config(llama, architectures=["LlamaForCausaLM"])
    with pytest.raises(ModelError, match="LlamaForCausalLM"):
        convert.prepare(llama)


def test_experts_as_transformers_holds_them(tmp_path: Path) -> None:
    """Fused expert tensors give the same file as those by number."""
    folder = folders.assemble("qwen3moe", tmp_path)
    want = converted(folder).read_bytes()
    stored = folders.read_safetensors(folder / "model.safetensors")
    plain = {k: v for k, v in stored.items() if ".experts." not in k}
    for i in range(2):

        def part(name: str, i: int = i) -> np.ndarray:
            where = f"model.layers.{i}.mlp.experts."
            return np.stack([stored[f"{where}{e}.{name}_proj.weight"][1] for e in range(4)])

        where = f"model.layers.{i}.mlp.experts"
        both = np.concatenate([part("gate"), part("up")], axis=1)
        plain |= {f"{where}.gate_up_proj": ("BF16", both)}
        plain |= {f"{where}.down_proj": ("BF16", part("down"))}
    folders.write_safetensors(folder / "model.safetensors", plain)
    fused = converted(folder)
    assert {k: v.tobytes() for k, v in tensors(fused).items()} == {
        one.name: dequantize(one.data, one.tensor_type).tobytes()
        for one in GGUFReader(_kept(folder, want)).tensors
    }


def _kept(folder: Path, raw: bytes) -> Path:
    path = folder.parent / "kept.gguf"
    path.write_bytes(raw)
    return path
