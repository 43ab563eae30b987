"""The front matter of a model card (README.md): the small part of YAML that these are written in.

Texts, numbers, lists in both forms, and lists of mappings; anything else is left out.
"""

from __future__ import annotations

import re
from typing import Any

_KEY = re.compile(r"([A-Za-z_][\w.-]*):(?:\s+(.*))?$")
_NUMBER = re.compile(r"[-+]?(\d[\d_]*)(\.\d*)?([eE][-+]?\d+)?")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "yes": True, "no": False}
_WORDS |= {"on": True, "off": False}


def front_matter(text: str) -> dict[str, Any]:
    """What stands between the two lines `---` at the start of the text."""
    lines = text.splitlines()
    if not lines or lines[0] != "---":
        return {}
    end = next((i for i, line in enumerate(lines[1:], 1) if line == "---"), len(lines))
    body = [line.replace("\t", "  ") for line in lines[1:end]]
    body = ['- "no"' if line.strip() == "- no" else line for line in body]
    return _mapping([line for line in body if line.strip() and not line.lstrip().startswith("#")])


def _mapping(lines: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    i = 0
    while i < len(lines):
        match = _KEY.match(lines[i])
        i += 1
        if match is None:
            continue
        block = []
        while i < len(lines) and (lines[i][0] in " -" and not _KEY.match(lines[i])):
            block.append(lines[i])
            i += 1
        value = (match[2] or "").strip()
        found[match[1]] = _block(value, block) if block else _scalar(value)
    return found


def _block(head: str, lines: list[str]) -> Any:
    """The value of a key that has lines of its own."""
    if head[:1] in (">", "|"):
        texts = [line.strip() for line in lines]
        return (" " if head[0] == ">" else "\n").join(texts) + ("" if "-" in head else "\n")
    if head:
        return _scalar(" ".join([head, *(line.strip() for line in lines)]))
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    cut = [line[margin:] for line in lines]
    if not cut[0].startswith("- ") and cut[0] != "-":
        return _mapping(cut)
    items: list[list[str]] = []
    for line in cut:
        if line.startswith("-"):
            items.append([line[1:].lstrip()])
        elif items:
            items[-1].append(line.strip())
    return [_mapping(item) if _KEY.match(item[0]) else _scalar(" ".join(item)) for item in items]


def _scalar(text: str) -> Any:
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1].strip()
        return [_scalar(part.strip()) for part in _split(inner)] if inner else []
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1].replace("''", "'") if text[0] == "'" else text[1:-1]
    text = re.sub(r"\s+#.*$", "", text)
    if text == "" or text.lower() in _WORDS:
        return _WORDS.get(text.lower())
    if _NUMBER.fullmatch(text):
        plain = text.replace("_", "")
        return float(plain) if any(c in plain for c in ".eE") else int(plain)
    return text


def _split(text: str) -> list[str]:
    """Parts between commas that are not in quotes."""
    return [m[0] for m in re.finditer(r'"[^"]*"|\'[^\']*\'|[^,\s][^,]*', text)]
