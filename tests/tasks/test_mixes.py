"""Which type each tensor gets: llama.cpp's own choices, recorded for tiny models of many kinds."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import quantize_models
from record_quantize import unpacked

from llamapy.core.errors import QuantError, UsageError
from llamapy.tasks import file_types, mixes, quantize
from llamapy.tasks.file_types import COPY, FILE_TYPES
from llamapy.tasks.inspect import open_gguf
from llamapy.tasks.quantize import Options
from llamapy.tasks.quantize_plan import Choices, model_facts, plan

FIXTURES = Path(__file__).parents[2] / "fixtures" / "quantize"
# llama.cpp stops where a row does not divide into Q1_0; here such a tensor falls back, as others.
OURS_ONLY = {("uneven", "Q1_0")}


@cache
def recorded() -> Any:
    return json.loads((FIXTURES / "types.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def written(folder: Path, name: str, order: int = 0) -> Path:
    path = folder / f"{name}-{order}.gguf"
    if not path.exists():
        quantize_models.write(name, path, order=order)
    return path


@pytest.mark.golden
@pytest.mark.parametrize("name", list(quantize_models.MODELS))
def test_every_file_type_gives_the_types_of_llama_cpp(name: str, folder: Path) -> None:
    different = []
    with open_gguf(written(folder, name)) as file:
        for file_type in (*FILE_TYPES, COPY):
            for how, truth in recorded()[name][file_type.name].items():
                has_importance = how == "importance"
                made = plan(file, file_type, importance=has_importance)
                needs = any(
                    one.changes and mixes.wants_importance(one.name, one.kind, file_type)
                    for one in made.tensors
                )
                expected = None if isinstance(truth, str) else unpacked(truth[0])
                got = [one.kind for one in made.tensors]
                if (needs and not has_importance) or (name, file_type.name) in OURS_ONLY:
                    got = None
                if got != expected:
                    different.append((file_type.name, how))
    assert different == []


@pytest.mark.parametrize("name", ["llama", "llama-8-experts", "falcon"])
def test_the_order_of_the_file_does_not_matter(name: str, folder: Path) -> None:
    plans = []
    for order in range(4):
        kinds = {}
        for file_type in ("Q4_K_M", "Q3_K_M", "IQ3_XS", "Q5_K_S"):
            with quantize.prepare(written(folder, name, order), file_type) as job:
                kinds[file_type] = {one.name: one.kind for one in job.plan.tensors}
        plans.append(kinds)
    assert all(plan == plans[0] for plan in plans[1:])
    assert len(set(plans[0]["Q4_K_M"].values())) > 2  # the rules did speak


def test_layers_count_by_their_number_not_as_text(folder: Path) -> None:
    with quantize.prepare(written(folder, "llama", 3), "Q4_K_M") as job:
        raised = [
            mixes.layer_of(one.name)
            for one in job.plan.tensors
            if "ffn_down" in one.name and one.kind == "q6_K"
        ]
    # 16 layers: the first and last eighth, and every third between, by integer division
    assert raised == [0, 1, 4, 7, 10, 13, 14, 15]


def test_more_bits_divides_integers() -> None:
    assert [i for i in range(10) if mixes.more_bits(i, 10)] == [0, 3, 6, 8, 9]
    assert [i for i in range(30) if mixes.more_bits(i, 30)] == [
        *(0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29),
    ]


@pytest.mark.parametrize(
    ("kind", "row", "expected"),
    [
        ("q4_K", 256, "q4_K"),
        ("q4_K", 96, "q5_0"),
        ("q4_K", 40, "f16"),
        ("q5_K", 1856, "q5_1"),
        ("q6_K", 2688, "q8_0"),
        ("q3_K", 96, "q4_0"),
        ("q2_0", 96, "q4_0"),
        ("q2_0", 192, "q2_0"),
        ("tq1_0", 96, "q4_0"),
        ("iq4_xs", 96, "iq4_nl"),
        ("iq1_m", 14, "f16"),
        ("q8_0", 14, "f16"),
        ("mxfp4", 40, "f16"),
        ("q1_0", 96, "q4_0"),
        ("bf16", 7, "bf16"),
    ],
)
def test_rows_that_do_not_divide(kind: str, row: int, expected: str) -> None:
    assert mixes.fallback(kind, row) == expected


def test_fallbacks_are_told_or_refused(folder: Path) -> None:
    source = written(folder, "uneven")
    with quantize.prepare(source, "Q4_K_M") as job:
        fallen = {one.name: (one.asked, one.kind) for one in job.plan.fallbacks}
        assert fallen["blk.0.attn_q.weight"] == ("q4_K", "q5_0")
        assert fallen["blk.0.attn_k.weight"] == ("q4_K", "f16")
        assert "blk.1.attn_v.weight" not in fallen
        assert all("do not divide" in one.reason for one in job.plan.fallbacks)
    with pytest.raises(QuantError, match=r"rows of 96 do not divide into q4_K blocks of 256"):
        quantize.prepare(source, "Q4_K_M", Options(choices=Choices(no_fallback=True)))
    named = Choices(no_fallback=True, tensor_types=[(".", "q4_k")])
    with pytest.raises(QuantError, match="--tensor-type"):
        quantize.prepare(source, "Q4_K_M", Options(choices=named))


def test_names_of_file_types() -> None:
    assert file_types.parse("q4_k_m") is file_types.parse("Q4_K") is file_types.parse("15")
    assert file_types.parse("copy") is COPY
    assert file_types.parse("0").name == "F32"
    with pytest.raises(UsageError, match="Q4_K_M") as caught:
        file_types.parse("q4_k_n")
    assert "did you mean" in caught.value.hint
    for gone in ("39", "4", "33", "q4_2", ""):
        assert file_types.find(gone) is None


def test_a_name_of_five_letters_is_no_weight() -> None:
    # llama.cpp subtracts 6 from the length and takes the overflow for a find
    assert not mixes.may_change("scale", (256, 2), "llama")
    assert mixes.may_change("x.weight", (256, 2), "llama")
    assert not mixes.may_change("x.weight", (256, 1), "llama")


def test_seventy_billions_by_architecture() -> None:
    class Said(dict[str, Any]):
        pass

    def facts(arch: str, layers: int, heads: int, kv: int) -> mixes.Model:
        said = Said({"general.architecture": arch, f"{arch}.block_count": layers})
        said |= {f"{arch}.attention.head_count": heads, f"{arch}.attention.head_count_kv": kv}
        return model_facts(said, {}, [], False)  # type: ignore[arg-type]

    assert facts("llama", 80, 64, 8).is_70b and facts("qwen2", 80, 64, 64).is_70b
    assert not facts("llama", 80, 64, 64).is_70b and not facts("llama", 79, 64, 8).is_70b
    assert facts("jais2", 68, 1, 1).is_70b and not facts("gemma3", 80, 8, 1).is_70b
    assert facts("llama", 2, 8, 0).gqa == 0
