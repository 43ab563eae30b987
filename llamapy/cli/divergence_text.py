"""Divergences as text: llama-perplexity's blocks, a table's rows, a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from llamapy.tasks import plot, plot_png
from llamapy.tasks.compare_quants import Measured
from llamapy.tasks.divergence import Divergence, Figure

COLUMNS = ["model", "MiB", "bits", "PPL", "ratio", "KLD", "99 % KLD", "RMS Δp", "same top"]
LEAST = 100  # values that statistics are worth being made of, as upstream


HEAD = (
    "chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence"
    "              Δp RMS            Same top p"
)


def chunk_row(number: int, d: Divergence) -> str:
    """The figures so far, a line a chunk, in llama-perplexity's columns (HEAD)."""
    ppl, ratio, kld = d.ppl, d.log_ratio, d.mean_kld
    parts = [
        f"{number:4d}",
        f"{ppl.value:9.4f} ± {ppl.error:9.4f}",
        f"{ratio.value:10.5f} ± {ratio.error:10.5f}",
        f"{kld.value:10.5f} ± {kld.error:10.5f}",
        *(f"{100 * f.value:6.3f} ± {100 * f.error:6.3f} %" for f in (d.rms_dp, d.same_top)),
    ]
    return "    ".join(parts)


def lines(d: Divergence) -> Iterator[str]:
    """All statistics, in llama-perplexity's words."""
    yield "====== Perplexity statistics ======"
    yield f"Mean PPL(Q)                   : {_pair(d.ppl)}"
    yield f"Mean PPL(base)                : {_pair(d.ppl_base)}"
    yield f"Cor(ln(PPL(Q)), ln(PPL(base))): {100 * d.correlation:6.2f}%"
    yield f"Mean ln(PPL(Q)/PPL(base))     : {_pair(d.log_ratio)}"
    yield f"Mean PPL(Q)/PPL(base)         : {_pair(d.ratio)}"
    yield f"Mean PPL(Q)-PPL(base)         : {_pair(d.difference)}"
    yield ""
    yield "====== KL divergence statistics ======"
    yield f"Mean    KLD: {_pair(d.mean_kld)}"
    for name, value in d.percentiles("kld").items():
        yield f"{_place(name)} KLD: {value:10.6f}"
    yield ""
    yield "====== Token probability statistics ======"
    yield f"Mean    Δp: {_percent(d.mean_dp)}"
    for name, value in d.percentiles("dp").items():
        yield f"{_place(name)} Δp: {100 * value:6.3f}%"
    yield f"RMS Δp    : {_percent(d.rms_dp)}"
    yield f"Same top p: {_percent(d.same_top)}"
    if len(d.kld) < LEAST:
        yield f"(only {len(d.kld)} tokens: the statistics say little)"


def _place(name: str) -> str:
    words = {"max": "Maximum", "min": "Minimum", "50": "Median "}
    return words.get(name) or f"{float(name):4.1f}%  "


def _pair(f: Figure) -> str:
    return f"{f.value:10.6f} ± {f.error:10.6f}"


def _percent(f: Figure) -> str:
    return f"{100 * f.value:6.3f} ± {100 * f.error:5.3f} %"


def row(one: Measured) -> list[str]:
    """A row of COLUMNS."""
    d = one.divergence
    return [
        Path(one.path).name,
        f"{one.n_bytes / 2**20:.1f}",
        f"{one.bits_per_weight:.2f}",
        f"{d.ppl.value:.4f} ± {d.ppl.error:.4f}",
        f"{d.ratio.value:.4f}",
        f"{abs(d.mean_kld.value):.6f}",
        f"{abs(d.percentiles('kld')['99']):.5f}",
        f"{100 * d.rms_dp.value:.3f} %",
        f"{100 * d.same_top.value:.2f} %",
    ]


def picture(several: Sequence[Measured], suffix: str) -> bytes:
    """Mean KLD against size, as an SVG or PNG picture or a page with the table."""
    points = []
    for one in several:
        kld = one.divergence.mean_kld
        value = max(kld.value, 0.0)  # rounding makes that of the base a little less
        error = min(kld.error, value)
        points.append(plot.Point(Path(one.path).stem, one.n_bytes / 2**20, value, error))
    title = f"Divergence from {Path(several[0].path).stem} by size"
    made = plot.shapes(title, "size of the weights, MiB", "mean KL divergence", points)
    if suffix == ".png":
        return plot_png.png(made)
    text = plot.svg(made)
    if suffix == ".html":
        text = plot.html(title, text, COLUMNS, [row(one) for one in several])
    return text.encode()
