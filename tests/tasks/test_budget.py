"""Types for a size: measured errors, and the choice of least error that fits."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import quantize_models as models
from hypothesis import given
from hypothesis import strategies as st

from llamapy.core.errors import QuantError, UsageError
from llamapy.gguf.header import TensorInfo
from llamapy.quants import api
from llamapy.tasks import budget, quantize
from llamapy.tasks.budget import Choice, Measured
from llamapy.tasks.quantize import Options
from llamapy.tasks.quantize_plan import Choices, Planned


def measured(name: str, choices: list[tuple[int, float]], weight: float = 1.0) -> Measured:
    planned = Planned(TensorInfo(name, (256, 1), 0, 0, 1024), name, "f32", "f32", free=True)
    made = tuple(Choice(f"t{i}", n, e) for i, (n, e) in enumerate(choices))
    return Measured(planned, made, weight)


def cost(several: list[Measured], chosen: list[Choice]) -> float:
    return sum(one.cost(choice) for one, choice in zip(several, chosen))


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(1, 40), st.integers(0, 30).map(float)), min_size=1, max_size=4
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 160),
)
def test_the_choice_beside_the_best_of_all(
    tensors: list[list[tuple[int, float]]], room: int
) -> None:
    several = [measured(f"w{i}", choices) for i, choices in enumerate(tensors)]
    all_choices = [one.choices for one in several]
    fitting = [c for c in product(*all_choices) if sum(x.n_bytes for x in c) <= room]
    if not fitting:
        with pytest.raises(QuantError, match="take at least"):
            budget.choose(several, room)
        return
    chosen = budget.choose(several, room)
    assert sum(one.n_bytes for one in chosen) <= room
    best = min(cost(several, list(c)) for c in fitting)
    # What a greedy choice can lose against the best one is a single step of a single tensor.
    steps = [
        one.cost(a) - one.cost(b)
        for one in several
        for a, b in zip(budget.curve(one), budget.curve(one)[1:])
    ]
    assert best - 1e-9 <= cost(several, chosen) <= best + max(steps, default=0.0) + 1e-9


def test_no_single_exchange_is_left(tmp_path: Path) -> None:
    rng = np.random.RandomState(0)
    several = [
        measured(
            f"w{i}", [(100 * k, 1 / k + rng.rand() / 50) for k in range(1, 9)], rng.rand() + 0.1
        )
        for i in range(60)
    ]
    chosen = budget.choose(several, 60 * 350)
    left = 60 * 350 - sum(one.n_bytes for one in chosen)
    for one, now in zip(several, chosen):
        for other in one.choices:
            if other.n_bytes - now.n_bytes <= left:
                assert one.cost(other) >= one.cost(now)


def test_a_large_tensor_is_worth_many_small_ones() -> None:
    """Small steps save more a byte, but then there is no room left for that of the large tensor."""
    several = [measured("embeddings", [(100, 0.3), (200, 0.01)])]
    several += [measured(f"w{i}", [(10, 0.05), (12, 0.001), (20, 0.0)]) for i in range(10)]
    chosen = budget.choose(several, 300)
    assert [one.n_bytes for one in chosen] == [200] + [10] * 10
    sizes = sorted(one.n_bytes for one in budget.choose(several, 304))
    assert sizes == [10] * 8 + [12, 12, 200]


def test_the_curve_bends_one_way() -> None:
    one = measured("w", [(10, 1.0), (20, 0.9), (30, 0.4), (25, 0.95), (60, 0.39), (50, 0.5)])
    assert [c.n_bytes for c in budget.curve(one)] == [10, 30, 60]


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("800MB", 800_000_000),
        ("3.2GiB", int(3.2 * 2**30)),
        ("1.5g", 1_500_000_000),
        (" 12 KiB", 12 * 1024),
        ("77", 77),
        ("5B", 5),
    ],
)
def test_sizes(text: str, n: int) -> None:
    assert budget.parse_size(text) == n


@pytest.mark.parametrize("text", ["", "GiB", "3.2Gb2", "-1G", "iB", "5iB", "1e3", "1,5G"])
def test_texts_that_are_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        budget.parse_size(text)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("budget") / "in.gguf"
    models.write("llama-gqa4", path, kind="f16")
    return path


def test_errors_are_those_of_the_rows(model: Path) -> None:
    """Tiny tensors are measured whole: the error is the numpy one of the encoded tensor."""
    with quantize.prepare(model, "Q4_K_M") as job:
        found = {one.planned.name: one for one in budget.measure(job.file, job.plan, None, 2)}
    name = "blk.3.ffn_up.weight"
    truth = models.values(name, (256, 2)).astype(np.float16).astype(np.float64)
    for choice in found[name].choices:
        if choice.kind == "f16":
            assert choice.error == 0.0 and choice.n_bytes == 1024
            continue
        got = api.dequantize(api.quantize(truth, choice.kind), choice.kind)
        expected = np.sqrt(np.square(got - truth).sum() / np.square(truth).sum())
        assert choice.error == pytest.approx(expected, rel=1e-6)
    kinds = [choice.kind for choice in found[name].choices]
    assert kinds[0] == "q2_K" and kinds[-1] == "f16" and "iq2_xxs" not in kinds


def test_a_file_has_the_size_that_was_asked(model: Path, tmp_path: Path) -> None:
    before = None
    for n in (45_000, 55_000, 70_000):
        with quantize.prepare(model, "Q4_K_M", Options(overwrite=True)) as job:
            quantize.fit(job, n_bytes=n)
            quantize.run(job, tmp_path / "out.gguf", measure=True)
        size = (tmp_path / "out.gguf").stat().st_size
        assert n - 6_000 < size <= n  # what is left for a step of a tensor, and for padding
        errors = sum(one.errors for one in job.errors.values())
        assert before is None or errors < before
        before = errors


@pytest.mark.parametrize("bits", [3.0, 4.5, 7.9])
def test_a_file_has_the_bits_that_were_asked(bits: float, model: Path) -> None:
    kinds = []
    for threads in (1, 3):
        with quantize.prepare(model, "Q4_K_M", Options(threads=threads)) as job:
            fixed = sum(one.n_bytes for one in job.plan.tensors if not one.free)
            n_all = sum(one.info.n_elements for one in job.plan.tensors)
            quantize.fit(job, bits_per_weight=bits + 8 * fixed / n_all)
            got = sum(one.n_bytes for one in job.plan.tensors if one.free)
            assert bits - 0.15 < 8 * got / n_all <= bits
            kinds.append({one.name: one.kind for one in job.plan.tensors})
    assert kinds[0] == kinds[1]


def test_tensors_that_the_user_names_stay(model: Path) -> None:
    choices = Choices(tensor_types=[("attn_v", "q8_0")], recipe=[("blk.0.ffn_up", "keep")])
    with quantize.prepare(model, "Q4_K_M", Options(choices=choices)) as job:
        quantize.fit(job, bits_per_weight=6.0)
        kinds = {one.name: one.kind for one in job.plan.tensors}
    assert kinds["blk.5.attn_v.weight"] == "q8_0" and kinds["blk.0.ffn_up.weight"] == "f16"


def test_sizes_that_cannot_be(model: Path) -> None:
    with quantize.prepare(model, "Q4_K_M") as job:
        with pytest.raises(QuantError, match=r"cannot be that small: at least \d\.\d+ bits"):
            quantize.fit(job, bits_per_weight=1.0)
        with pytest.raises(QuantError, match=r"at least \d\.\d+ bits per weight, [\d,]+ bytes"):
            quantize.fit(job, n_bytes=1000)
    with (
        quantize.prepare(model, "COPY") as job,
        pytest.raises(QuantError, match="no tensor is left"),
    ):
        quantize.fit(job, bits_per_weight=4.0)
