"""llamapy quantize and llamapy compare: every option, what is shown, what is refused and how.

What files hold is read with the `gguf` package; recorded hashes are llama.cpp's own files'.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import quantize_models as models

from llamapy.cli.main import run
from llamapy.tasks import importance
from llamapy.tasks.importance import Entry, Imatrix

RECORDED = Path(__file__).parents[2] / "fixtures" / "quantize" / "types.json"
Outcome = tuple[int, str, str]
Call = Callable[..., Outcome]
V, DOWN = "blk.4.attn_v.weight", "blk.0.ffn_down.weight"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """call("in.gguf", "q8_0"): (exit code, stdout, stderr) of `llamapy quantize`."""

    def call(*arguments: object, command: str = "quantize") -> Outcome:
        code = run([command, *map(str, arguments)])
        out, err = capfd.readouterr()
        return code, out, err

    return call


@pytest.fixture
def made(call: Call) -> Callable[..., dict[str, str]]:
    """made(model, options...): types by name, as gguf reads them, of what came of a tiny model."""

    def made(model: str, *options: object) -> dict[str, str]:
        models.write(model, Path("in.gguf"))
        code, _, err = call("in.gguf", "out.gguf", *options, "--force")
        assert code == 0, err
        return types_of("out.gguf")

    return made


Make = Callable[..., dict[str, str]]


def types_of(path: str | Path) -> dict[str, str]:
    return {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}


def value_of(path: str | Path, key: str) -> Any:
    return gguf.GGUFReader(path).fields[key].contents()


def listed(*keep: str) -> list[str]:
    return sorted(p.name for p in Path().iterdir() if p.name not in keep)


def refused(outcome: Outcome, *words: str, code: int = 1) -> str:
    """The one line that an error is."""
    assert outcome[0] == code and outcome[1] == ""
    assert len(outcome[2].splitlines()) == 1 and "internal" not in outcome[2]
    assert all(word in outcome[2] for word in words), outcome[2]
    return outcome[2]


# -- arguments


@pytest.mark.golden
@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        (["--type", "q4_k_m"], "ggml-model-Q4_K_M.gguf"),
        (["Q4_k_M"], "ggml-model-Q4_K_M.gguf"),
        (["15", "2"], "ggml-model-Q4_K_M.gguf"),
        (["out.gguf", "q4_K"], "out.gguf"),
        (["out.gguf", "q4_k_m", "1"], "out.gguf"),
        (["out.gguf", "--type", "Q4_K_M", "-t", "2"], "out.gguf"),
        (["q4_k_m", "--type", "q4_k_m"], "q4_k_m"),
    ],
)
def test_spellings_of_one_file(arguments: list[str], target: str, call: Call) -> None:
    truth = json.loads(RECORDED.read_text())["llama"]["Q4_K_M"]["plain"][1]
    models.write("llama", Path("in.gguf"))
    code, _, err = call("in.gguf", *arguments)
    assert code == 0 and err == f"written: {target}\n"
    assert hashlib.sha256(Path(target).read_bytes()).hexdigest() == truth
    assert listed() == sorted(["in.gguf", target])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["out.gguf", "q4_k_n"], ["'q4_k_n'", "did you mean", "Q4_K_M"]),
        (["out.gguf", "--type", "iq3xs"], ["'iq3xs'", "IQ3_XS"]),
        (["out.gguf"], ["no file type is given"]),
        (["out.gguf", "q8_0", "2", "x"], ["'x'", "one argument too many"]),
        (["out.gguf", "q8_0", "--type", "q4_0"], ["--type says q4_0, the arguments say q8_0"]),
        (["out.gguf", "q8_0", "--target-bpw", "4"], ["do not go together"]),
        (["out.gguf", "--target-size", "4Gx"], ["'4Gx' is not a size"]),
        (["out.gguf", "q8_0", "--tensor-type", "attn_v"], ["'attn_v' is not NAME=TYPE"]),
        (["out.gguf", "q8_0", "--override-kv", "a=int"], ["is not KEY=TYPE:VALUE"]),
        (["out.gguf", "q8_0", "--prune-layers", "1,x"], ["'1,x' is no list of layers"]),
        (["out.gguf", "q8_0", "--no-such-option"], ["--no-such-option"]),
        (
            ["out.gguf", "q8_0", "--include-weights", "a", "--exclude-weights", "b"],
            ["do not go together"],
        ),
    ],
)
def test_misuse(arguments: list[str], words: list[str], call: Call) -> None:
    models.write("names", Path("in.gguf"))
    refused(call("in.gguf", *arguments), *words, code=2)
    assert listed() == ["in.gguf"]


def test_options_that_name_types(made: Make) -> None:
    plain = made("llama", "q4_k_m")
    assert (plain[V], plain["output.weight"]) == ("Q6_K", "Q6_K")
    assert plain["token_embd.weight"] == "Q4_K" and plain["output_norm.weight"] == "F32"
    pure = made("llama", "q4_k_m", "--pure")
    assert set(pure.values()) == {"Q4_K", "F32"} and pure["output.weight"] == "Q4_K"
    assert made("llama", "q4_k_m", "--leave-output-tensor")["output.weight"] == "F32"
    assert made("llama", "q4_k_m", "--output-tensor-type", "Q5_0")["output.weight"] == "Q5_0"
    ends = made("llama", "q4_k_m", "--token-embedding-type", "iq4_nl")
    assert ends["token_embd.weight"] == "IQ4_NL" and ends["output.weight"] == "Q6_K"


def test_patterns(made: Make) -> None:
    Path("types.txt").write_text("attn_k=q5_1\nblk\\.1\\.ffn=q8_0 attn_v=q2_k\n")
    found = made(
        "llama", "q4_k_m", "--tensor-type", "attn_v=Q5_0", "--tensor-type", r"\.2\..*up=iq4_xs",
        "--tensor-type-file", "types.txt",
    )  # fmt: skip
    assert found[V] == "Q5_0" and found["blk.3.attn_k.weight"] == "Q5_1"  # the first one counts
    assert found["blk.2.ffn_up.weight"] == "IQ4_XS" and found["blk.1.ffn_up.weight"] == "Q8_0"
    assert found["blk.3.ffn_up.weight"] == "Q4_K"


def test_a_recipe(made: Make, call: Call) -> None:
    Path("r.toml").write_text(
        'type = "q4_0"\noutput = "q8_0"\n[tensors]\n"attn_v" = "q6_k"\n\'blk\\.0\\.\' = "keep"\n'
    )
    found = made("llama", "--recipe", "r.toml")
    assert (found[V], found[DOWN], found["output.weight"]) == ("Q6_K", "F32", "Q8_0")
    assert found["blk.0.attn_v.weight"] == "Q6_K" and found["blk.2.ffn_up.weight"] == "Q4_0"
    assert made("llama", "q5_0", "--recipe", "r.toml")["blk.2.ffn_up.weight"] == "Q5_0"
    for text, words in {
        "[tensors": ["is no TOML"],
        "tpye = 'q4_0'": ["unknown entry 'tpye'", "there are"],
        "pure = 'yes'": ["entry 'pure'", "must be a true or false"],
        "[tensors]\na = 'q4_9'": ["unknown tensor type 'q4_9'", "q4_"],
    }.items():
        Path("r.toml").write_text(text)
        refused(call("in.gguf", "new.gguf", "q8_0", "--recipe", "r.toml"), *words)
    assert not Path("new.gguf").exists()


def test_layers_and_metadata(made: Make) -> None:
    found = made(
        "llama", "q8_0", "--prune-layers", "3,0",
        "--override-kv", "general.name=str:other", "--override-kv", "new.flag=bool:true",
    )  # fmt: skip
    assert max(int(n.split(".")[1]) for n in found if n.startswith("blk.")) == 13
    assert value_of("out.gguf", "llama.block_count") == 14
    assert value_of("out.gguf", "general.name") == "other"
    assert value_of("out.gguf", "new.flag") is True
    pruned = {t.name: t.data.tobytes() for t in gguf.GGUFReader("out.gguf").tensors}
    made("llama", "q8_0")
    whole = {t.name: t.data.tobytes() for t in gguf.GGUFReader("out.gguf").tensors}
    assert pruned["blk.0.attn_q.weight"] == whole["blk.1.attn_q.weight"]
    assert pruned["blk.2.attn_q.weight"] == whole["blk.4.attn_q.weight"]


def test_quantized_input_needs_a_word(call: Call) -> None:
    models.write("llama", Path("in.gguf"))
    assert call("in.gguf", "q.gguf", "q8_0")[0] == 0
    refused(call("q.gguf", "out.gguf", "q4_0"), "is already q8_0", "--allow-requantize")
    assert call("q.gguf", "out.gguf", "q4_0", "--allow-requantize")[0] == 0
    assert types_of("out.gguf")[V] == "Q4_0"


def test_parts_stay_parts(call: Call) -> None:
    models.write("llama", Path("in.gguf"))
    assert call("in.gguf", "out", "q8_0", "--keep-split")[0] == 0
    assert listed("in.gguf") == ["out-00001-of-00001.gguf"]


# -- importances


def imatrix_of(model: str, **changes: Any) -> Imatrix:
    entries = {
        name: Entry(weights, np.ones(len(weights), np.int64))
        for name, weights in models.importances(model).items()
    }
    return Imatrix(entries | changes.get("entries", {}), ["text"], chunk_count=1, chunk_size=1)


def test_both_formats_whatever_their_names(made: Make) -> None:
    importance.write_gguf(imatrix_of("llama"), Path("i.dat"))
    importance.write_dat(imatrix_of("llama"), Path("i.gguf"))
    first = made("llama", "iq3_xxs", "--imatrix", "i.dat")
    data = [t.data.tobytes() for t in gguf.GGUFReader("out.gguf").tensors]
    assert value_of("out.gguf", "quantize.imatrix.file") == "i.dat"
    assert made("llama", "iq3_xxs", "--imatrix", "i.gguf") == first
    assert [t.data.tobytes() for t in gguf.GGUFReader("out.gguf").tensors] == data
    n = len(models.importances("llama"))
    assert value_of("out.gguf", "quantize.imatrix.entries_count") == n
    made("llama", "q4_k_m", "--imatrix", "i.dat", "--include-weights", "attn_v")
    assert value_of("out.gguf", "quantize.imatrix.entries_count") == 16
    made("llama", "q4_k_m", "--imatrix", "i.dat", "--exclude-weights", "attn_v")
    assert value_of("out.gguf", "quantize.imatrix.entries_count") == n - 16


def test_types_that_need_importances(call: Call) -> None:
    models.write("llama", Path("in.gguf"))
    refused(call("in.gguf", "out.gguf", "iq2_xxs"), "needs importances", "llamapy imatrix")
    assert listed() == ["in.gguf"]


def test_an_imatrix_of_another_model_is_told_at_once(call: Call) -> None:
    models.write("llama", Path("in.gguf"))
    names = [f"blk.{i}.ffn_up.weight" for i in range(16)]
    wrong = {name: Entry(np.ones((1, 40), np.float32), np.ones(1, np.int64)) for name in names}
    importance.write_gguf(imatrix_of("llama", entries=wrong), Path("i.gguf"))
    line = refused(
        call("in.gguf", "out.gguf", "q4_k_m", "--imatrix", "i.gguf"), "another model", "text"
    )
    for name in names:  # every one of them
        assert f"'{name}' has 40 importances, needs 256" in line
    assert listed() == ["i.gguf", "in.gguf"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_importances_that_are_not_finite(value: float, call: Call) -> None:
    models.write("llama", Path("in.gguf"))
    sums = np.ones((1, 256), np.float32)
    sums[0, 31] = value
    odd = {DOWN: Entry(sums, np.ones(1, np.int64))}
    importance.write_gguf(imatrix_of("llama", entries=odd), Path("i.gguf"))
    arguments = ("in.gguf", "out.gguf", "q4_k_m", "--imatrix", "i.gguf")
    refused(call(*arguments), DOWN, f"the importance of column 31 is {value}", "--allow-nonfinite")
    assert listed() == ["i.gguf", "in.gguf"]
    code, _, err = call(*arguments, "--allow-nonfinite")
    assert code == 0 and f"{DOWN}': 1 of 256 importances are odd (1 not finite)" in err


def test_importances_on_which_ggml_ends_the_process(call: Call) -> None:
    """tests/quants/test_iq.py shows that it does: here it is an error with the row's name."""
    models.write("llama", Path("in.gguf"))
    large = {V: Entry(np.full((1, 256), 3e38, np.float32), np.ones(1, np.int64))}
    importance.write_gguf(imatrix_of("llama", entries=large), Path("i.gguf"))
    arguments = ("in.gguf", "out.gguf", "iq3_s", "--pure", "--imatrix", "i.gguf")
    line = refused(call(*arguments), f"tensor '{V}': row 0 cannot be quantized to iq3_s")
    assert "far too large" in line and listed() == ["i.gguf", "in.gguf"]
    refused(call(*arguments, "--allow-nonfinite"), "cannot be quantized to iq3_s")
    code, _, _ = call("in.gguf", "--target-bpw", "4", "--imatrix", "i.gguf", "--dry-run")
    assert code == 0  # the types that cannot hold the tensor are not chosen


# -- what is shown


def test_the_table(call: Call) -> None:
    models.write("uneven", Path("in.gguf"))
    code, out, err = call("in.gguf", "out.gguf", "q4_k_m")
    assert code == 0 and err == "written: out.gguf\n"
    table = out.partition("asked ")[0]
    rows = {line.split()[0]: line.split() for line in table.splitlines() if line.strip()}
    read = gguf.GGUFReader("out.gguf").tensors
    for kind in ("q5_0", "q4_K", "f16"):
        mine = [t for t in read if t.tensor_type.name == kind.upper()]
        assert rows[kind][1] == str(len(mine))
        assert int(rows[kind][2].replace(",", "")) == sum(int(t.n_elements) for t in mine)
    n_all, n_bytes = (sum(int(getattr(t, k)) for t in read) for k in ("n_elements", "n_bytes"))
    assert rows["all"][1] == str(len(read)) and rows["all"][-1] == f"{8 * n_bytes / n_all:.3f}"
    assert f"got {8 * n_bytes / n_all:.3f} bits per weight" in out
    assert "have another type than asked:" in out
    assert "q4_K -> q5_0: rows of 96 do not divide into q4_K blocks of 256 (" in out
    assert "q4_K -> f16: rows of 40 do not divide into q4_K blocks of 256 (" in out


def test_json(call: Call) -> None:
    models.write("uneven", Path("in.gguf"))
    planned = call("in.gguf", "out.gguf", "q4_k_m", "--dry-run", "--json")
    assert planned[0] == 0 and listed() == ["in.gguf"]
    code, out, _ = call("in.gguf", "out.gguf", "q4_k_m", "--json")
    found = json.loads(out)
    assert code == 0 and found["written"] == ["out.gguf"]
    assert json.loads(planned[1]) == found | {"written": []}
    reader = gguf.GGUFReader("out.gguf")
    truth = [(t.name, t.tensor_type.name.lower(), int(t.n_bytes)) for t in reader.tensors]
    assert [(t["name"], t["to"].lower(), t["n_bytes"]) for t in found["tensors"]] == truth
    assert found["total"]["n_bytes"] == sum(n for *_, n in truth)
    assert sum(kind["share"] for kind in found["types"].values()) == pytest.approx(1, abs=1e-5)
    fallback = next(t for t in found["fallbacks"] if t["name"] == "blk.0.attn_k.weight")
    assert (fallback["asked"], fallback["got"]) == ("q4_K", "f16")
    assert found["bits_per_weight_asked"] < found["total"]["bits_per_weight"]


def test_no_fallback(call: Call) -> None:
    models.write("uneven", Path("in.gguf"))
    line = refused(call("in.gguf", "out.gguf", "q4_k_m", "--no-fallback"), "--no-fallback")
    assert "rows of 40 do not divide into q4_K blocks of 256" in line and "tensors cannot" in line
    assert listed() == ["in.gguf"]


def test_dry_run_reads_no_weights(call: Call) -> None:
    models.write("llama", Path("in.gguf"))
    with Path("in.gguf").open("r+b") as file:  # all weights are NaN
        start = gguf.GGUFReader("in.gguf").data_offset
        file.seek(start)
        file.write(b"\xff" * (Path("in.gguf").stat().st_size - start))
    assert call("in.gguf", "out.gguf", "q4_k_m", "--dry-run")[0] == 0
    refused(call("in.gguf", "out.gguf", "q4_k_m"), "row 0, column 0 is nan", "--allow-nonfinite")
    assert listed() == ["in.gguf"]


def test_a_size_instead_of_a_type(call: Call) -> None:
    models.write("llama-gqa4", Path("in.gguf"), kind="f16")
    assert call("in.gguf", "a.gguf", "--target-size", "60kB", "--report", "r.json")[0] == 0
    assert 54_000 < Path("a.gguf").stat().st_size <= 60_000
    trades = json.loads(Path("r.json").read_text())["trades"]
    chosen = {trade["name"]: trade["chosen"].upper() for trade in trades}
    assert {n: k.upper() for n, k in types_of("a.gguf").items() if n in chosen} == chosen
    code, out, _ = call("in.gguf", "b.gguf", "--target-bpw", "9", "--json")
    found = json.loads(out)
    assert code == 0 and found["bits_per_weight_asked"] == pytest.approx(9, abs=0.01)
    assert 8.5 < found["total"]["bits_per_weight"] <= 9
    refused(call("in.gguf", "c.gguf", "--target-bpw", "1"), "cannot be that small: at least")
    assert listed() == ["a.gguf", "b.gguf", "in.gguf", "r.json"]


def test_reports_and_comparisons_agree(call: Call) -> None:
    models.write("llama", Path("in.gguf"))
    code, _, err = call("in.gguf", "out.gguf", "q3_k_m", "--report", "r.html")
    assert code == 0 and err == "written: out.gguf\nwritten: r.html\n"
    assert Path("r.html").read_text().startswith("<!doctype html>")
    assert call("in.gguf", "out.gguf", "q3_k_m", "--force", "--report", "r.json")[0] == 0
    found = {t["name"]: t for t in json.loads(Path("r.json").read_text())["tensors"]}
    code, out, _ = call("in.gguf", "out.gguf", "--json", "--report", "c.html", command="compare")
    compared = {t["name"]: t for t in json.loads(out)["tensors"]}
    assert code == 0 and compared.keys() == found.keys() and "<svg" in Path("c.html").read_text()
    for name, tensor in found.items():
        assert compared[name]["rmse"] == pytest.approx(tensor["rmse"], rel=1e-9)
    code, out, _ = call("in.gguf", "out.gguf", command="compare")
    line = next(line for line in out.splitlines() if line.split()[:1] == [V])
    assert line.split()[1:4] == ["f32", found[V]["to"], f"{found[V]['rmse']:.4g}"]
    refused(call("in.gguf", "no.gguf", command="compare"), "no.gguf")
    refused(call("in.gguf", "x.gguf", "q8_0", "--report", "r.pdf"), ".json or a .html", code=2)
    refused(call("in.gguf", "x.gguf", "q8_0", "--report", "in.gguf"), code=2)
    assert not Path("x.gguf").exists()


# -- outputs that cannot be


def test_outputs_that_lose_nothing(call: Call) -> None:
    models.write("names", Path("in.gguf"))
    before = Path("in.gguf").read_bytes()
    Path("soft.gguf").symlink_to("in.gguf")
    os.link("in.gguf", "hard.gguf")
    for target in ("in.gguf", "./in.gguf", "soft.gguf", "hard.gguf"):
        refused(call("in.gguf", target, "q8_0", "--force"), "is the input", "another name")
    refused(call("soft.gguf", "hard.gguf", "q8_0", "--force"), "is the input")
    refused(call("in.gguf", "none/out.gguf", "q8_0"), "does not exist")
    refused(call("none.gguf", "out.gguf", "q8_0"), "none.gguf")
    Path("old.gguf").write_text("precious")
    refused(call("in.gguf", "old.gguf", "q8_0"), "exists already", "--force")
    if Path("/dev/full").exists():
        refused(call("in.gguf", "/dev/full", "q8_0", "--force"), "not a regular file")
    assert Path("in.gguf").read_bytes() == before and Path("old.gguf").read_text() == "precious"
    assert listed() == ["hard.gguf", "in.gguf", "old.gguf", "soft.gguf"]
