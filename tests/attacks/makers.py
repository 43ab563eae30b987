"""Malformed GGUF files, one maker a threat: what is wrong, which error names it, what it must say.

Written with `struct` from the format's description alone: the code under test has no part in it.
`ATTACKS` is filled by the decorator; other tools that open files may be run over all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from llamapy.core.errors import FileFormatError, LlamapyError

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
Q4_0, REMOVED, I8_TENSOR = 2, 4, 24


def string(raw: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def kv(key: bytes, kind: int, payload: bytes) -> bytes:
    return string(key) + struct.pack("<i", kind) + payload


def strings(key: bytes, items: list[bytes]) -> bytes:
    body = struct.pack("<iQ", STR, len(items)) + b"".join(map(string, items))
    return kv(key, ARR, body)


def array(key: bytes, kind: int, code: str, items: list[float]) -> bytes:
    head = struct.pack("<iQ", kind, len(items))
    return kv(key, ARR, head + struct.pack(f"<{len(items)}{code}", *items))


def tensor(name: bytes, ne: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    shape = struct.pack(f"<I{len(ne)}q", len(ne), *ne)
    return string(name) + shape + struct.pack("<iQ", kind, offset)


def header(n_tensors: int, n_fields: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_fields)


def gguf(
    fields: list[bytes] | tuple[bytes, ...] = (),
    tensors: list[bytes] | tuple[bytes, ...] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    head = header(len(tensors), len(fields), version) + b"".join(fields) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


ARCH = kv(b"general.architecture", STR, string(b"llama"))
ONE = tensor(b"t", (8,))  # 32 bytes of f32
DATA = bytes(range(32))


def good() -> bytes:
    """A sound file of more than 400 bytes before its data end, for cutting."""
    fields = [ARCH, kv(b"test.number", U32, struct.pack("<I", 7))]
    fields += [
        strings(b"test.strings", [b"one", b"", b"three"]),
        array(b"test.f", F32, "f", [1, 2]),
    ]
    tensors = [tensor(b"a", (8, 2)), tensor(b"b", (32,), Q4_0, 64), tensor(b"c", (4,), 0, 96)]
    return gguf(fields, tensors, bytes(64) + bytes(32) + bytes(32))


@dataclass(frozen=True)
class Attack:
    """A malformed file: its bytes, the error class, and what the message must contain."""

    name: str
    make: Callable[[], bytes]
    error: type[LlamapyError]
    says: tuple[str, ...]
    c_accepts: bool  # ggml's C reader lets it pass (it does not look at the file's end)


ATTACKS: dict[str, Attack] = {}


def attack(
    *says: str, error: type[LlamapyError] = FileFormatError, c_accepts: bool = False
) -> Callable[[Callable[[], bytes]], Callable[[], bytes]]:
    def register(make: Callable[[], bytes]) -> Callable[[], bytes]:
        ATTACKS[make.__name__] = Attack(make.__name__, make, error, says, c_accepts)
        return make

    return register


# --- A01: sizes that wrap around -----------------------------------------------------------------


@attack("tensor 't'", "[4398046511105, 4194304]", "18446744073713745920")
def t_dim_wrap() -> bytes:
    return gguf([ARCH], [tensor(b"t", (2**42 + 1, 2**22))], DATA)


@attack("tensor 't'", "36893488147419103228 bytes", "truncated")
def t_nbytes_wrap() -> bytes:
    return gguf([ARCH], [tensor(b"t", (2**63 - 1,))], DATA)


@attack("tensor 'a'", "9223372036854775744 bytes", "truncated", c_accepts=True)
def t_size_sum_wrap() -> bytes:
    size = 2**63 - 64
    tensors = [tensor(b"a", (size,), I8_TENSOR), tensor(b"b", (size,), I8_TENSOR, size)]
    return gguf([ARCH], tensors, DATA)


@attack("tensor 't'", "dimension 1 of [4, -2] is -2")
def t_neg_dim() -> bytes:
    return gguf([ARCH], [tensor(b"t", (4, -2))], DATA)


@attack("tensor 't'", "[0, 9223372036854775807, 4]", c_accepts=True)
def t_zero_hides_wrap() -> bytes:
    return gguf([ARCH], [tensor(b"t", (0, 2**63 - 1, 4))], DATA)


# --- A02: counts ---------------------------------------------------------------------------------


@attack("key-value count", str(2**60), "truncated")
def h_nkv_huge() -> bytes:
    return header(0, 2**60)


@attack("tensor count", str(2**60), "truncated")
def h_nt_huge() -> bytes:
    return header(2**60, 0)


@attack("tensor count", str(2**64 // 24 + 1), "truncated")
def h_nt_size_wrap() -> bytes:
    return header(2**64 // 24 + 1, 1) + ARCH


@attack("tensor count", "truncated")
def h_nt_negative() -> bytes:
    return header(2**64 - 1, 0) + bytes(100)


# --- A03: lengths --------------------------------------------------------------------------------


@attack("key 'k'", f"string length {2**61} exceeds")
def kv_str_len_huge() -> bytes:
    return gguf([kv(b"k", STR, string(b"", 2**61))])


@attack("key 'k'", "string of 1000000 bytes", "truncated")
def kv_str_len_past_end() -> bytes:
    return gguf([kv(b"k", STR, string(b"abc", 10**6))])


@attack("key 0", f"string length {2**64 - 1} exceeds")
def kv_key_len_huge() -> bytes:
    return header(0, 1) + string(b"", 2**64 - 1) + bytes(20)


@attack("key 'k' array length", str(2**61), "truncated")
def kv_arr_len_huge() -> bytes:
    return gguf([kv(b"k", ARR, struct.pack("<iQ", U32, 2**61))])


@attack("key 'k' array length", str(2**62 + 1), "truncated")
def kv_arr_len_wrap() -> bytes:
    return gguf([kv(b"k", ARR, struct.pack("<iQ", U32, 2**62 + 1) + bytes(64))])


@attack("key 'k' array length", str(2**61), "truncated")
def kv_arr_str_count_huge() -> bytes:
    return gguf([kv(b"k", ARR, struct.pack("<iQ", STR, 2**61) + bytes(64))])


@attack("key 'k'[1]", f"string length {2**63} exceeds")
def kv_arr_str_len_huge() -> bytes:
    body = struct.pack("<iQ", STR, 3) + string(b"a") + string(b"", 2**63)
    return gguf([kv(b"k", ARR, body + bytes(64))])


# --- A05: duplicates and empty keys --------------------------------------------------------------


@attack("key 1", "the key is empty")
def kv_empty_key() -> bytes:
    return gguf([ARCH, kv(b"", U8, b"\1")], [ONE], DATA)


@attack("key 'general.architecture'", "duplicate key")
def kv_dup_key() -> bytes:
    return gguf([ARCH, ARCH], [ONE], DATA)


@attack("tensor 't'", "duplicate tensor name")
def t_dup_name() -> bytes:
    return gguf([ARCH], [ONE, tensor(b"t", (8,), 0, 32)], DATA + DATA)


# --- A07: alignment ------------------------------------------------------------------------------


def _aligned(kind: int, payload: bytes, alignment: int = 32) -> bytes:
    return gguf([kv(b"general.alignment", kind, payload)], [ONE], DATA, alignment=alignment)


@attack("key 'general.alignment'", "alignment 0 is not a power of two")
def al_zero() -> bytes:
    return _aligned(U32, struct.pack("<I", 0))


@attack("key 'general.alignment'", "alignment 13 is not a power of two")
def al_13() -> bytes:
    return _aligned(U32, struct.pack("<I", 13))


@attack("key 'general.alignment'", "must be UINT32 but is INT32")
def al_type_i32() -> bytes:
    return _aligned(I32, struct.pack("<i", 32))


@attack("alignment 2147483648", "truncated")
def al_huge() -> bytes:
    return _aligned(U32, struct.pack("<I", 2**31))


@attack("alignment 2147483648", "truncated")
def al_huge_zero_bytes() -> bytes:
    fields = [kv(b"general.alignment", U32, struct.pack("<I", 2**31))]
    return gguf(fields, [tensor(b"t", (4, 0))])


# --- A09: files that are cut or no GGUF at all ----------------------------------------------------


@attack("tensor 't'", "truncated: has 150 bytes, needs 160", c_accepts=True)
def t_truncated_data() -> bytes:
    whole = gguf([ARCH], [ONE], DATA)
    return whole[: len(whole) - 10]


@attack("Git LFS pointer for 253113024 bytes", "git lfs pull")
def h_lfs_pointer() -> bytes:
    return b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 253113024\n"


@attack("version", "truncated: has 4 bytes, needs 8")
def h_magic_only() -> bytes:
    return b"GGUF"


@attack("the file is empty")
def h_empty_file() -> bytes:
    return b""


@attack("tensor count", "truncated: has 12 bytes, needs 16")
def h_short_header() -> bytes:
    return header(0, 0)[:12]


@attack("not a GGUF file", "begins with 'GGUX'")
def h_wrong_magic() -> bytes:
    return b"GGUX" + header(0, 0)[4:]


@attack("safetensors")
def h_safetensors() -> bytes:
    return struct.pack("<Q", 2) + b'{"a":1}'


@attack("web page")
def h_web_page() -> bytes:
    return b"<!DOCTYPE html><html>404</html>"


# --- A10: versions -------------------------------------------------------------------------------


@attack("version", "version 1 is no longer supported")
def h_version1() -> bytes:
    return gguf([ARCH], [ONE], DATA, version=1)


@attack("version", "version 4 is newer than 3")
def h_version4() -> bytes:
    return gguf([ARCH], [ONE], DATA, version=4)


@attack("version", "bad GGUF version 0")
def h_version0() -> bytes:
    return gguf([ARCH], [ONE], DATA, version=0)


@attack("version", "version 4660 is newer")
def h_version_odd_swapped() -> bytes:
    return gguf([ARCH], [ONE], DATA, version=0x34120000)


# --- A12: parts joined ---------------------------------------------------------------------------


@attack("second GGUF begins", "joined with cat", c_accepts=True)
def s_joined() -> bytes:
    return gguf([ARCH], [ONE], DATA) * 2


# --- types, names and places (gguf.cpp's other checks) --------------------------------------------


@attack("key 'k'", "value type 13 is not one of 0..12")
def kv_type_13() -> bytes:
    return gguf([kv(b"k", 13, bytes(8))])


@attack("key 'k'", "value type -1 is not")
def kv_type_negative() -> bytes:
    return gguf([kv(b"k", -1, bytes(8))])


@attack("key 'k'", "arrays of arrays")
def kv_arr_of_arr() -> bytes:
    return gguf([kv(b"k", ARR, struct.pack("<iQ", ARR, 1) + bytes(32))])


@attack("key 'k' element type", "value type 99")
def kv_arr_type_bad() -> bytes:
    return gguf([kv(b"k", ARR, struct.pack("<iQ", 99, 1) + bytes(32))])


@attack("tensor 't'", "5 dimensions, at most 4")
def t_five_dims() -> bytes:
    return gguf([ARCH], [tensor(b"t", (1,) * 5)], DATA)


@attack("tensor 't'", "4294967295 dimensions, at most 4")
def t_dims_huge() -> bytes:
    bad = string(b"t") + struct.pack("<I", 2**32 - 1) + bytes(64)
    return gguf([ARCH], [bad], DATA)


@attack("name of 64 bytes, at most 63")
def t_name_64() -> bytes:
    return gguf([ARCH], [tensor(b"t" * 64, (8,))], DATA)


@attack("tensor 't'", "unknown tensor type 43")
def t_type_43() -> bytes:
    return gguf([ARCH], [tensor(b"t", (8,), 43)], DATA)


@attack("tensor 't'", "unknown tensor type -1")
def t_type_negative() -> bytes:
    return gguf([ARCH], [tensor(b"t", (8,), -1)], DATA)


@attack("tensor 't'", "unknown tensor type 4")
def t_type_removed() -> bytes:
    return gguf([ARCH], [tensor(b"t", (32,), REMOVED)], DATA)


@attack("tensor 't'", "rows of 16 elements do not divide into blocks of 32")
def t_row_not_blocks() -> bytes:
    return gguf([ARCH], [tensor(b"t", (16, 2), Q4_0)], DATA)


@attack("tensor 'b'", "has offset 64, expected 32")
def t_offset_gap() -> bytes:
    return gguf([ARCH], [tensor(b"a", (8,)), tensor(b"b", (8,), 0, 64)], DATA * 3)


@attack("tensor 'b'", "has offset 0, expected 32")
def t_offset_overlap() -> bytes:
    return gguf([ARCH], [tensor(b"a", (8,)), tensor(b"b", (8,))], DATA * 2)


@attack("tensor 'a'", "has offset 32, expected 0")
def t_offset_swapped() -> bytes:
    return gguf([ARCH], [tensor(b"a", (8,), 0, 32), tensor(b"b", (8,))], DATA * 2)


@attack("tensor 't'", f"has offset {2**64 - 32}, expected 0")
def t_offset_huge() -> bytes:
    return gguf([ARCH], [tensor(b"t", (8,), 0, 2**64 - 32)], DATA)


@attack("tensor '\\u65e5\\xff", "has offset 1")
def t_odd_name() -> bytes:
    return gguf([ARCH], [tensor("日\xff\n\x1b[2J".encode(), (8,), 0, 1)], DATA)
