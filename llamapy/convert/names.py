"""What the name of a model says: base name, size, fine-tune, version; and file names from these.

The rules are those of gguf-py (metadata.py, utility.py), so that metadata come out the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_VERSION = re.compile(r"(v|iter)?\d+([.]\d+)*", re.IGNORECASE)
_TYPE = re.compile(r"i?q\d(_\w)*|b?fp?(16|32)", re.IGNORECASE)
_SIZE = re.compile(
    r"(([A]|\d+[x])?\d+([._]\d+)?[KMBT][\d]?|small|mini|medium|large|x?xl)", re.IGNORECASE
)
_FINETUNE = re.compile(r"chat|instruct|vision|lora", re.IGNORECASE)
_KEEPS_CASE = re.compile(r"^(v\d+(?:\.\d+)*|\d.*)$")


@dataclass(frozen=True)
class NameParts:
    """None for what the name does not say."""

    full: str | None = None
    organization: str | None = None
    basename: str | None = None
    finetune: str | None = None
    version: str | None = None
    size_label: str | None = None


@dataclass
class _Part:
    text: str
    roles: set[str]


def parse(model_id: str, n_params: int = 0) -> NameParts:
    """The parts of "organization/Base-7B-Chat-v1". Sizes far from n_params are context lengths."""
    if " " in model_id:
        return NameParts(full=model_id)
    organization: str | None = None
    full = model_id
    if "/" in model_id:
        organization, full = model_id.split("/", 1)
        if organization.startswith("."):
            organization = None
    parts = [_Part(text, set()) for text in full.split("-") if text]
    for i, part in enumerate(parts):
        _annotate(part, i == 0, n_params)
    sizes = [p for p in parts if "size_label" in p.roles]
    if any(c.isdecimal() for p in sizes for c in p.text):
        for p in sizes:
            if p.text.isalpha():
                p.roles.remove("size_label")
    _mark_basename(parts)

    def joined(role: str, without: str = "") -> str | None:
        texts = [p.text for p in parts if role in p.roles and without not in p.roles]
        return "-".join(dict.fromkeys(texts) if role == "size_label" else texts) or None

    size, finetune = joined("size_label"), joined("finetune")
    version = joined("version", without="basename")
    basename = joined("basename") if size or finetune or version else None
    return NameParts(full, organization, basename, finetune, version, size)


def _annotate(part: _Part, is_first: bool, n_params: int) -> None:
    if _VERSION.fullmatch(part.text):
        part.roles.add("version")
    elif _TYPE.fullmatch(part.text):
        part.roles.add("type")
        part.text = part.text.upper()
    elif not is_first and _SIZE.fullmatch(part.text):
        _annotate_size(part, n_params)
    elif not is_first and _FINETUNE.fullmatch(part.text):
        part.roles.add("finetune")


def _annotate_size(part: _Part, n_params: int) -> None:
    text = part.text.replace("_", ".")
    if text[-1].isdecimal():  # bloom's 7b1
        text = text[:-2] + "." + text[-1] + text[-2]
    if len(text) > 1 and text[-2].isdecimal() and text[-1] in "kmbt":
        text = text[:-1] + text[-1].upper()
    try:
        size = float(text[:-1]) * 1000.0 ** " KMBT".find(text[-1])
    except ValueError:
        size = None
    if n_params and size is not None and abs(size - n_params) > 7 * n_params // 8:
        part.roles.add("finetune")  # a context length
        text = text[:-1] + text[-1].lower()
    if not part.roles:
        part.roles.add("size_label")
    part.text = text


def _mark_basename(parts: list[_Part]) -> None:
    at_start = True
    for part in parts:
        if at_start and ((not part.roles and part.text[0].isalpha()) or "version" in part.roles):
            part.roles.add("basename")
        else:
            at_start = False
            if not part.roles:
                part.roles.add("finetune")
    for part in reversed(parts):
        if "basename" not in part.roles or len(part.roles) == 1:
            break
        part.roles.remove("basename")


def title(text: str) -> str:
    """Words with capitals, but for acronyms and versions."""
    words = text.strip().replace("-", " ").split()
    return " ".join(w.title() if w.islower() and not _KEEPS_CASE.match(w) else w for w in words)


def size_label(total: int, shared: int, per_expert: int, n_expert: int) -> str:
    """ "1.1B", or "8x7B" with experts: at least two digits."""
    if n_expert > 0:
        return f"{n_expert}x{_rounded(shared + per_expert)}"
    return _rounded(total)


def _rounded(n: int) -> str:
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if n > limit:
            scaled = n * {"T": 1e-12, "B": 1e-9, "M": 1e-6}[unit]
            break
    else:
        scaled, unit = n * 1e-3, "K"
    digits = max(2 - len(str(round(scaled)).lstrip("0")), 0)
    return f"{scaled:.{digits}f}{unit}"


def file_name(
    *,
    name: str | None,
    basename: str | None,
    finetune: str | None,
    version: str | None,
    size_label: str | None,
    output_type: str | None,
    kind: str | None = None,
) -> str:
    """ "Base-7B-Chat-v1-Q8_0", the name that convert_hf_to_gguf.py gives a file."""
    base = basename if basename is not None else name if name is not None else "ggml-model"
    parts = [base.strip().replace(" ", "-").replace("/", "-")]
    parts += [size_label] if size_label is not None else []
    for part in (finetune, version, output_type and output_type.upper(), kind):
        if part is not None:
            parts.append(part.strip().replace(" ", "-"))
    return "-".join(parts)
