"""The rules of docs/development.md that can be read off the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

Rule = Callable[[ast.AST], bool]

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "llamapy").rglob("*.py"))
SOURCES = MODULES + sorted((ROOT / "tools").rglob("*.py")) + sorted((ROOT / "tests").rglob("*.py"))
FORBIDDEN_NAMES = {"utils", "util", "common", "misc", "helper", "helpers", "manager", "stuff"}
HOME = re.compile(r"(?<![\w/.])/(?:home|root|Users|work)/\w")  # a path of somebody's machine


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def places(paths: list[Path], rule: Rule) -> Iterator[str]:
    """`path:line` of every node that `rule(node)` is true for."""
    for path in paths:
        for node in ast.walk(tree(path)):
            if rule(node):
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def is_arch_test(node: ast.AST) -> bool:
    """`arch == "llama"` and its kin: what an arch needs belongs in its file."""
    if not isinstance(node, ast.Compare) or not isinstance(
        node.ops[0], ast.Eq | ast.NotEq | ast.In
    ):
        return False
    names = [s for s in (node.left, *node.comparators) if isinstance(s, ast.Name | ast.Attribute)]
    said = {s.id if isinstance(s, ast.Name) else s.attr for s in names}
    texts = [c for s in (node.left, *node.comparators) for c in ast.walk(s)]
    literal = any(isinstance(c, ast.Constant) and isinstance(c.value, str) for c in texts)
    return literal and bool(said & {"arch", "arch_name", "architecture"})


def is_cache_option(node: ast.AST) -> bool:
    """`njit(cache=True)`: only native/ knows where compiled code is kept."""
    return isinstance(node, ast.Call) and any(
        k.arg == "cache" and isinstance(k.value, ast.Constant) and k.value.value is True
        for k in node.keywords
    )


def is_swallowing(node: ast.AST) -> bool:
    """`except Exception: pass`."""
    if not isinstance(node, ast.ExceptHandler) or not isinstance(node.body[0], ast.Pass):
        return False
    return node.type is None or getattr(node.type, "id", "") in {"Exception", "BaseException"}


@pytest.mark.parametrize(
    ("rule", "bad", "good"),
    [
        (is_arch_test, "if arch == 'llama': pass", "if arch == other: pass"),
        (is_arch_test, "x = p.arch in ('a', 'b')", "x = name in ('a', 'b')"),
        (is_cache_option, "njit(nogil=True, cache=True)", "njit(nogil=True)"),
        (is_swallowing, "try: f()\nexcept Exception: pass", "try: f()\nexcept OSError: pass"),
    ],
)
def test_the_rules_catch_what_they_are_for(rule: Rule, bad: str, good: str) -> None:
    assert any(rule(node) for node in ast.walk(ast.parse(bad)))
    assert not any(rule(node) for node in ast.walk(ast.parse(good)))


def test_every_module_says_what_it_holds() -> None:
    silent = [str(p.relative_to(ROOT)) for p in SOURCES if not ast.get_docstring(tree(p))]
    assert silent == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    parts = {p: {*p.relative_to(ROOT).with_suffix("").parts} for p in SOURCES}
    assert [str(p) for p, words in parts.items() if words & FORBIDDEN_NAMES] == []


def test_no_branch_on_an_architecture_outside_its_file() -> None:
    outside = [p for p in MODULES if ROOT / "llamapy" / "archs" not in p.parents]
    assert list(places(outside, is_arch_test)) == []


def test_only_native_chooses_a_compile_cache() -> None:
    outside = [p for p in MODULES if ROOT / "llamapy" / "native" not in p.parents]
    assert list(places(outside, is_cache_option)) == []


def test_no_error_is_swallowed() -> None:
    assert list(places(SOURCES, is_swallowing)) == []


def test_no_source_names_a_folder_of_one_machine() -> None:
    docs = [
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("*.md"),
        *ROOT.glob("*.toml"),
        ROOT / "Makefile",
    ]
    found = [p for p in SOURCES + docs if HOME.search(p.read_text(encoding="utf-8"))]
    assert [str(p.relative_to(ROOT)) for p in found] == []


def test_the_documents_know_every_folder_and_variable() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    folders = {p.parent.name for p in (ROOT / "llamapy").glob("*/__init__.py")}
    assert set(re.findall(r"^    llamapy/(\w+) ", readme, re.MULTILINE)) == folders
    settings = (ROOT / "llamapy" / "core" / "settings.py").read_text(encoding="utf-8")
    guide = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
    assert set(re.findall(r"LLAMAPY_\w+", settings)) <= set(re.findall(r"LLAMAPY_\w+", guide))
