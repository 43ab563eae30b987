"""Special ids, whether they are added to a text, the chat template, and what the normalizer does.

They hide in tokenizer.json (added tokens, post-processor, normalizer), tokenizer_config.json,
config.json and files of their own. Which place wins is as in gguf-py (vocab.py: SpecialVocab).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_letters, digits
from typing import Any

from llamapy.convert.checkpoint import Checkpoint
from llamapy.core.errors import ModelError
from llamapy.core.log import log

KINDS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_ID_KEYS = {
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",  # written so in the format
    "pad": "padding_token_id",
}
_WITHOUT_KEY = ("cls",)
_ADDED = ("bos", "eos", "sep")  # there are keys for adding these

Json = Mapping[str, Any]


def id_key(kind: str) -> str:
    """The key of a special token's id."""
    return "tokenizer.ggml." + _ID_KEYS.get(kind, f"{kind}_token_id")


@dataclass
class Special:
    """What was found; ids and flags in the order in which they are written."""

    kinds: list[str] = field(default_factory=lambda: list(KINDS))
    ids: dict[str, int] = field(default_factory=dict)
    added: dict[str, bool] = field(default_factory=dict)
    template: str | list[Any] | None = None
    normalizer: dict[str, bool] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """{key: value}."""
        found: dict[str, Any] = {}
        for kind, number in self.ids.items():
            if kind not in _WITHOUT_KEY:
                found[id_key(kind)] = number
        for kind, value in self.added.items():
            if kind in _ADDED:
                found[f"tokenizer.ggml.add_{kind}_token"] = value
        found |= _templates(self.template)
        for name, value in self.normalizer.items():
            found[f"tokenizer.ggml.normalizer.{name}"] = value
        return found


def collect(checkpoint: Checkpoint, n_vocab: int | None = None) -> Special:
    """Look in all places. Ids that are not below n_vocab do not count."""
    found = Special()
    tokenizer = checkpoint.json("tokenizer.json")
    config = checkpoint.json("tokenizer_config.json")
    if tokenizer:
        _normalizer(found, tokenizer.get("normalizer"))
        config = _Processor(found, config).read(tokenizer.get("post_processor"))
    if config:
        found.template = _template(checkpoint, config)
        _from_tokenizer_config(found, config, tokenizer.get("added_tokens") or [], n_vocab)
    for kind in found.kinds:
        _set(found, kind, checkpoint.config.get(f"{kind}_token_id"), n_vocab)
    return found


def _set(found: Special, kind: str, number: Any, n_vocab: int | None) -> None:
    if not isinstance(number, int) or isinstance(number, bool):
        return
    if number < 0:
        raise ModelError(f"the id of the {kind} token is {number}")
    if n_vocab is not None and number >= n_vocab:
        log.warning("the id of the %s token is %d, of %d tokens: left out", kind, number, n_vocab)
    else:
        found.ids.setdefault(kind, number)


def _from_tokenizer_config(
    found: Special, config: Json, added: Sequence[Json], n_vocab: int | None
) -> None:
    for kind in found.kinds:
        flag = config.get(f"add_{kind}_token")
        if isinstance(flag, bool) and found.added.setdefault(kind, flag) != flag:
            log.warning("add_%s_token is %s, the post-processor says otherwise", kind, flag)
        text = config.get(f"{kind}_token")
        text = text.get("content") if isinstance(text, Mapping) else text
        if isinstance(text, str):
            number = next((a.get("id") for a in added if a.get("content") == text), None)
            _set(found, kind, number, n_vocab)


def _normalizer(found: Special, node: Any) -> None:
    kind = node.get("type") if isinstance(node, Mapping) else None
    if kind == "Lowercase":
        found.normalizer["lowercase"] = True
    elif kind == "StripAccents":
        found.normalizer["strip_accents"] = True
    elif kind == "BertNormalizer":
        for name in ("lowercase", "strip_accents"):
            if node.get(name) is not None:
                found.normalizer[name] = bool(node[name])
    elif kind == "Sequence":
        for inner in node.get("normalizers", []):
            _normalizer(found, inner)


class _Processor:
    """What the post-processor adds around a text, or between two."""

    def __init__(self, found: Special, config: Json) -> None:
        self.found, self.config = found, dict(config)
        self.there = bool(config)
        named = {k: self.config.get(f"{k}_token") for k in ("bos", "cls", "eos", "sep")}
        if not named["bos"] and named["cls"]:
            self._name("bos", named["cls"])
            named["bos"] = named["cls"]
        if not named["eos"] and named["sep"]:
            self._name("eos", named["sep"])
            named["eos"] = named["sep"]
        self.named = named

    def _name(self, kind: str, text: Any) -> None:
        if self.there:
            self.config[f"{kind}_token"] = text

    def read(self, node: Any) -> dict[str, Any]:
        """Read all of it; the tokenizer_config with what was learned."""
        if isinstance(node, Mapping):
            for one in node.get("processors", [node]):
                reader = {
                    "ByteLevel": self._byte_level,
                    "RobertaProcessing": self._roberta,
                    "TemplateProcessing": self._template,
                }.get(str(one.get("type")))
                if reader:
                    reader(one)
        return self.config

    def _byte_level(self, node: Json) -> None:
        self.found.added.setdefault("bos", False)
        self.found.added.setdefault("eos", False)

    def _roberta(self, node: Json) -> None:
        self.found.added.update(bos=True, eos=True, sep=True)
        for kind, other in (("cls", "bos"), ("sep", "eos")):
            if not self.named[kind] and self.there:
                self.named[kind] = node.get(kind, [self.named[other]])[0]
                self._name(kind, self.named[kind])

    def _template(self, node: Json) -> None:
        single, pair = node.get("single") or [], node.get("pair") or []
        first = _special(single[0]) if len(single) > 1 else None
        last = _special(single[-1]) if len(single) > 1 else None
        if first:
            self._first(first)
        if last:
            self._last(last)
        if pair:
            self._pair(pair, first, last)

    def _first(self, text: str) -> None:
        names = self.named
        if not self.there:
            names["bos"] = text
        elif text not in (names["bos"], names["cls"]):
            for kind in ("bos", "cls"):
                if not names[kind]:
                    names[kind] = text
                    self._name(kind, text)
        self.found.added["bos"] = text in (names["bos"], names["cls"])

    def _last(self, text: str) -> None:
        names = self.named
        if not self.there:
            names["eos"] = text
        elif text != names["eos"]:
            for kind in ("eot", "eom"):  # what was the end of text ends a turn
                if kind not in self.found.kinds:
                    self.found.kinds.append(kind)
                    self._name(kind, names["eos"])
                    break
            names["eos"] = text
            self._name("eos", text)
        self.found.added["eos"] = text == names["eos"]

    def _pair(self, pair: Sequence[Json], first: str | None, last: str | None) -> None:
        start = 1 if first and _special(pair[0]) == first else 0
        stop = -1 if last and _special(pair[-1]) == last else None
        inner = pair[start:stop]
        if not inner or _sequence(inner[0]) != "A" or _sequence(inner[-1]) != "B":
            return
        between = inner[1:-1]
        if not between:
            return
        ends = (self.named["sep"], self.named["eos"])
        one = _special(between[0])
        add = one in ends and not last if one else False
        if len(between) == 2 and _special(between[1]) in ends:
            add = True
        self.found.added["sep"] = add
        if add and not self.named["sep"]:
            self._name("sep", self.named["eos"])


def _special(node: Json) -> str | None:
    found = node.get("SpecialToken")
    return found.get("id") if isinstance(found, Mapping) else None


def _sequence(node: Json) -> str | None:
    found = node.get("Sequence")
    return found.get("id") if isinstance(found, Mapping) else None


def _template(checkpoint: Checkpoint, config: Json) -> str | list[Any] | None:
    """The chat template: in tokenizer_config.json, else in files of its own."""
    other: Any = checkpoint.text("chat_template.jinja")
    if other is not None:
        more = sorted((checkpoint.folder / "additional_chat_templates").glob("*.jinja"))
        if more:
            other = [{"name": "default", "template": other}]
            for path in more:
                text = checkpoint.text(f"additional_chat_templates/{path.name}")
                other.append({"name": path.stem, "template": text})
    else:
        other = checkpoint.json("chat_template.json").get("chat_template")
    found = config.get("chat_template", other)
    return found if isinstance(found, str | list) else None


def _templates(template: str | list[Any] | None) -> dict[str, Any]:
    """Keys of one template, or of several by name ("default" has the plain key)."""
    if template is None:
        return {}
    key = "tokenizer.chat_template"
    if isinstance(template, str):
        return {key: template}
    found: dict[str, Any] = {}
    names: list[str] = []
    default: str | None = None
    for one in template:
        name = "".join(c if c in ascii_letters + digits else "_" for c in one.get("name", ""))
        text = one.get("template")
        if name == "default" and text is not None:
            default = text
        elif name and text is not None:
            names.append(name)
            found[f"{key}.{name}"] = text
    if names:
        found["tokenizer.chat_templates"] = list(dict.fromkeys(names))
    if default is not None:
        found[key] = default
    return found
