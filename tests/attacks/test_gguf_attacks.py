"""Every malformed file gives one clear error, quickly, in little memory, and never a traceback."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
import tracemalloc

import makers
import pytest

from llamapy.cli.main import run
from llamapy.core.errors import FileFormatError
from llamapy.gguf.reader import GGUFFile
from llamapy.quants import codec

LENIENT = ("kv_empty_key", "kv_dup_key", "t_dup_name")  # dump shows these and warns


@pytest.fixture(params=sorted(makers.ATTACKS))
def attack(request, tmp_path):
    found = makers.ATTACKS[request.param]
    path = tmp_path / "bad.gguf"
    path.write_bytes(found.make())
    return found, path


@pytest.mark.parametrize("mmap", [True, False])
def test_the_reader_names_file_field_and_place(attack, mmap):
    found, path = attack
    codec.type_sizes(0)
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(found.error) as error:
            GGUFFile(path, mmap=mmap, type_sizes=codec.type_sizes)
        spent, memory = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    text = str(error.value)
    assert text.startswith(f"{path}: ")
    for part in found.says:
        assert part in text, text
    assert "\n" not in text
    assert error.value.field
    assert isinstance(error.value.offset, int)
    assert f"(at byte {error.value.offset})" in text
    assert spent < 0.5
    assert memory < 20 << 20


def test_dump_exits_1_with_one_line(attack, capsys):
    found, path = attack
    assert run(["dump", str(path)]) == 1
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert str(path) in err
    for part in found.says:
        assert part in err
    assert err.isprintable() or err[:-1].isprintable()
    assert bool(out) == (found.name in LENIENT)


def test_ggml_refuses_them_too(attack, c_gguf):
    """The files are as bad as they claim: llama.cpp's own reader refuses all but the marked."""
    found, path = attack
    assert c_gguf.accepts(path) == found.c_accepts


def test_a_good_file_cut_at_every_byte(tmp_path):
    whole = makers.good()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole)
    with GGUFFile(path, type_sizes=codec.type_sizes) as file:
        end = max(info.offset + info.n_bytes for info in file.tensors)
    assert end > 400
    for cut in range(end):
        path.write_bytes(whole[:cut])
        with pytest.raises(FileFormatError) as error:
            GGUFFile(path, type_sizes=codec.type_sizes, mmap=bool(cut % 2))
        if cut >= 4:
            assert f"truncated: has {cut} bytes, needs " in str(error.value)
            assert int(str(error.value).split("needs ")[1].split()[0]) > cut


def test_every_single_damaged_byte_is_survived(tmp_path):
    """Any byte replaced: the file opens, or there is one error; never anything else."""
    whole = makers.good()
    path = tmp_path / "damaged.gguf"
    opened = 0
    for at in range(len(whole)):
        for flip in (1, 0xFF):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
            try:
                with GGUFFile(path, type_sizes=codec.type_sizes, lenient=True) as file:
                    assert all(isinstance(file.metadata[key], object) for key in file.metadata)
                    assert all(file.bytes(t).nbytes == t.n_bytes for t in file.tensors)
                    opened += 1
            except FileFormatError:
                pass
    assert 0 < opened < 2 * len(whole)


GOOD = {
    "h_version2_ok": lambda: makers.gguf([makers.ARCH], [makers.ONE], makers.DATA, version=2),
    "t_zero_dim": lambda: makers.gguf([makers.ARCH], [makers.tensor(b"t", (4, 0))]),
    "t_no_dims": lambda: makers.gguf([makers.ARCH], [makers.tensor(b"t", ())], bytes(32)),
    "t_name_63": lambda: makers.gguf([], [makers.tensor(b"t" * 63, (8,))], makers.DATA),
    "t_no_last_padding": lambda: makers.gguf([], [makers.tensor(b"t", (1,))], bytes(4)),
    "h_nothing": lambda: makers.header(0, 0),
    "h_trailing_bytes": lambda: makers.gguf([], [makers.ONE], makers.DATA) + bytes(7),
    "al_64_ok": lambda: makers.gguf(
        [makers.kv(b"general.alignment", makers.U32, b"\x40\0\0\0")],
        [makers.ONE],
        makers.DATA,
        alignment=64,
    ),
}


@pytest.mark.parametrize("name", sorted(GOOD))
def test_odd_but_sound_files_are_accepted(name, tmp_path, c_gguf, capsys):
    path = tmp_path / "good.gguf"
    path.write_bytes(GOOD[name]())
    assert c_gguf.accepts(path)
    with GGUFFile(path, type_sizes=codec.type_sizes) as file:
        sizes = {"t_zero_dim": 0, "t_no_dims": 4, "t_no_last_padding": 4}
        assert [t.n_bytes for t in file.tensors] in ([sizes.get(name, 32)], [])
        assert file.alignment == (64 if name == "al_64_ok" else 32)
    assert run(["dump", str(path)]) == 0
    assert capsys.readouterr().err == ""


VOCABULARIES = {
    "v_scores_short": ("tokenizer.ggml.scores has 1 elements", "tokens has 2"),
    "v_scores_u8": ("tokenizer.ggml.scores is an array of UINT8, not an array of FLOAT32",),
    "v_types_long": ("tokenizer.ggml.token_type has 3 elements", "tokens has 2"),
    "v_tokens_numbers": ("tokenizer.ggml.tokens is an array of UINT32",),
    "v_dup_tokens": ("tokenizer.ggml.tokens has 'a' twice, at 0 and 1",),
    "v_bos_out_of_range": ("tokenizer.ggml.bos_token_id is 2, outside the 2 tokens",),
    "v_block_count_huge": ("llama.block_count is 4294967295, more than 512",),
}


def _vocabulary(name: str) -> bytes:
    m = makers
    tokens = m.strings(b"tokenizer.ggml.tokens", [b"a", b"a" if name == "v_dup_tokens" else b"b"])
    fields = {
        "v_scores_short": m.array(b"tokenizer.ggml.scores", m.F32, "f", [0]),
        "v_scores_u8": m.array(b"tokenizer.ggml.scores", m.U8, "B", [0, 0]),
        "v_types_long": m.array(b"tokenizer.ggml.token_type", m.I32, "i", [1, 1, 1]),
        "v_bos_out_of_range": m.kv(b"tokenizer.ggml.bos_token_id", m.U32, b"\2\0\0\0"),
        "v_block_count_huge": m.kv(b"llama.block_count", m.U32, b"\xff" * 4),
    }
    if name == "v_tokens_numbers":
        tokens = m.array(b"tokenizer.ggml.tokens", m.U32, "I", [1, 2])
    return m.gguf([m.ARCH, tokens, *([fields[name]] if name in fields else [])])


@pytest.mark.parametrize("name", sorted(VOCABULARIES))
def test_dump_shows_doubtful_models_and_warns(name, tmp_path, capsys):
    path = tmp_path / "v.gguf"
    path.write_bytes(_vocabulary(name))
    assert run(["dump", str(path)]) == 1
    out, err = capsys.readouterr()
    assert "tokenizer.ggml.tokens" in out
    assert err.count("\n") == 1
    for part in VOCABULARIES[name]:
        assert part in err


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))


@pytest.mark.parametrize("name", ["h_nkv_huge", "t_size_sum_wrap"])
def test_as_a_process_of_its_own(name, tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(makers.ATTACKS[name].make())
    done = subprocess.run(
        [sys.executable, "-m", "llamapy", "dump", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=_limited,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [path]
