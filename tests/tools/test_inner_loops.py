"""Loops and their products are found in machine code, here in text that can be counted by hand."""

from __future__ import annotations

import inner_loops

CODE = [
    ("outer", "movq %rax, %rbx"),
    ("inner", "vpdpbusd (%rsi), %zmm1, %zmm2"),
    ("", "vpmaddubsw %ymm1, %ymm3, %ymm4"),
    ("", "decq %rcx"),
    ("", "jne inner"),
    ("", "vpdpbusd %xmm1, %xmm1, %xmm2"),
    ("", "jb outer"),
    ("", "jmp elsewhere"),
]


def test_only_loops_without_loops_in_them() -> None:
    assert list(inner_loops.innermost(CODE)) == [[text for _, text in CODE[1:5]]]


def test_products_by_the_width_of_the_operands() -> None:
    assert inner_loops.n_products([text for _, text in CODE]) == 64 + 32 + 16
    assert inner_loops.n_products(["decq %rcx"]) == 0
