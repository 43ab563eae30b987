"""Metadata of a converted model: what it is called and where it comes from, and its numbers.

Keys, sources, their order and which source wins are those of gguf-py (metadata.py) and
convert_hf_to_gguf.py. The tokenizer's keys are made in vocab.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

from llamapy.convert import card, names
from llamapy.convert.checkpoint import Checkpoint, read_json
from llamapy.convert.names import NameParts
from llamapy.core.errors import FileFormatError, ModelError
from llamapy.gguf import keys
from llamapy.gguf.values import ValueType
from llamapy.nn.hf import STANDARD_KEYS
from llamapy.nn.params import Params

Values = dict[str, Any]
Typed = tuple[Any, ValueType]  # a value whose type is not the one that would be guessed

HUB = "https://huggingface.co"
_I32, _F32 = ValueType.INT32, ValueType.FLOAT32

# key after "general.sampling." -> names in generation_config.json, and type
_SAMPLING: dict[str, tuple[tuple[str, ...], ValueType]] = {
    "sequence": (("sequence",), ValueType.STRING),
    "top_k": (("top_k",), _I32),
    "top_p": (("top_p",), _F32),
    "min_p": (("min_p",), _F32),
    "xtc_probability": (("xtc_probability",), _F32),
    "xtc_threshold": (("xtc_threshold",), _F32),
    "temp": (("temperature",), _F32),
    "penalty_last_n": (("penalty_last_n",), _I32),
    "penalty_repeat": (("penalty_repeat", "repetition_penalty"), _F32),
    "mirostat": (("mirostat",), _I32),
    "mirostat_tau": (("mirostat_tau",), _F32),
    "mirostat_eta": (("mirostat_eta",), _F32),
}

# field -> names in the model card, the first that is there counts
_CARD = {
    "name": ("name", "model_name"),
    "author": ("author", "model_author", "model_creator"),
    "version": ("version", "model_version"),
    "organization": ("organization", "model_organization"),
    "finetune": ("finetune", "model_finetune"),
    "basename": ("basename", "model_basename", "model_type"),
    "description": ("description", "model_description"),
    "size_label": ("size_label", "model_size_label"),
    "license": ("license",),
    "license.name": ("license_name",),
    "license.link": ("license_link",),
    "source.url": ("url", "model_url"),
    "source.doi": ("doi", "model_doi"),
    "source.uuid": ("uuid", "model_uuid"),
    "source.repo_url": ("repo_url", "model_repo_url"),
}

# the order of keys in the file
_GENERAL = (
    *("name", "author", "version", "organization", "finetune", "basename", "description"),
    *("quantized_by", "size_label", "license", "license.name", "license.link", "url", "doi"),
    *("uuid", "repo_url", "source.url", "source.doi", "source.uuid", "source.repo_url"),
)
_RELATED: tuple[str, ...] = (
    "name",
    "author",
    "version",
    "organization",
    "description",
    "url",
    "doi",
    "uuid",
)
_RELATED += ("repo_url",)


@dataclass
class About:
    """What is known of a model besides its numbers: fields of "general.", related models, lists."""

    sampling: Values = field(default_factory=dict)
    fields: Values = field(default_factory=dict)
    base_models: list[Values] | None = None
    datasets: list[Values] | None = None
    tags: list[str] | None = None
    languages: list[str] | None = None

    def values(self) -> Values:
        """{key: value} in the order of the file."""
        found: Values = {}
        for key, (_, kind) in _SAMPLING.items():
            value = self.sampling.get(key)
            if value is not None:
                found[f"general.sampling.{key}"] = (value, kind)
        for key in _GENERAL:
            value = self.fields.get(key)
            if value is not None:
                text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
                found[f"general.{key}"] = text
        for what, entries in (("base_model", self.base_models), ("dataset", self.datasets)):
            if entries is not None:
                found[f"general.{what}.count"] = len(entries)
            for i, entry in enumerate(entries or []):
                for key in _RELATED:
                    if entry.get(key) is not None:
                        found[f"general.{what}.{i}.{key}"] = str(entry[key])
        for key, listed in (("tags", self.tags), ("languages", self.languages)):
            if listed is not None:
                found[f"general.{key}"] = [str(one) for one in listed]
        return found


def about(
    checkpoint: Checkpoint,
    shapes: Mapping[str, Sequence[int]],
    *,
    override: Path | None = None,
    name: str | None = None,
) -> About:
    """Everything known: from the card, the configuration, the folder's name; then what overrides.

    shapes    of the tensors that are written (their number of values decides what names mean)
    override  a JSON file of keys
    name      beats them all
    """
    total, shared, per_expert, n_expert = count_parameters(shapes)
    found = About(sampling=_sampling(checkpoint))
    front = card.front_matter(checkpoint.text("README.md") or "")
    _use_card(found, front, total)
    path = checkpoint.config.get("_name_or_path")
    guesses = [path] if isinstance(path, str) and path and path.count("/") <= 1 else []
    for model_id in [*guesses, checkpoint.folder.resolve().name]:
        _use_name(found, names.parse(model_id, total))
    if override is not None:
        _use_override(found, read_json(override), override)
    if name is not None:
        found.fields["name"] = name
    if found.fields.get("name") is None:
        found.fields["name"] = checkpoint.folder.resolve().name
    if found.fields.get("size_label") is None and total:
        found.fields["size_label"] = names.size_label(total, shared, per_expert, n_expert)
    return found


def _sampling(checkpoint: Checkpoint) -> Values:
    try:
        config = checkpoint.json("generation_config.json")
    except FileFormatError:
        return {}
    found: Values = {}
    for key, (sources, _) in _SAMPLING.items():
        found[key] = next((config[s] for s in sources if config.get(s) is not None), None)
    return found


def _use_card(found: About, front: Values, total: int) -> None:
    for key, sources in _CARD.items():
        found.fields[key] = next((front[s] for s in sources if front.get(s) is not None), None)
    bases = _listed(front, "base_model", "base_models", "base_model_sources")
    if bases is not None:
        found.base_models = [_related(one, total) for one in bases]
    sets = _listed(front, "datasets", "dataset", "dataset_sources")
    if sets is not None:
        found.datasets = [_related(one, total) for one in sets]
    found.tags = _gathered(front, "tags", "pipeline_tag")
    found.languages = _gathered(front, "languages", "language")


def _listed(front: Values, *sources: str) -> list[Any] | None:
    """A value or list under one of these names, as a list; None if there is no such name."""
    if not any(s in front for s in sources):
        return None
    value = next((front[s] for s in sources if s in front), None)
    if isinstance(value, str):
        return [value]
    return list(value) if isinstance(value, list) else []


def _gathered(front: Values, *sources: str) -> list[str] | None:
    found: list[str] | None = None
    for source in sources:
        value = front.get(source)
        if value is not None:
            found = (found or []) + ([value] if isinstance(value, str) else list(value))
    return found


def _related(model_id: Any, total: int) -> Values:
    """Another model or a data set, by id, address or as a mapping."""
    if isinstance(model_id, dict):
        return model_id
    text = str(model_id)
    entry: Values = {}
    if text.startswith(("http://", "https://", "ssh://")):
        entry["repo_url"] = text
        match = re.match(r"https?://huggingface.co/([^/]+/[^/]+)$", text)
        if match is None:
            return entry
        text = match[1]
    parts = names.parse(text, total)
    if parts.full is not None:
        entry["name"] = names.title(parts.full)
    if parts.organization is not None:
        entry["organization"] = names.title(parts.organization)
    if parts.version is not None:
        entry["version"] = parts.version
    if "repo_url" not in entry and parts.organization is not None and parts.full is not None:
        entry["repo_url"] = f"{HUB}/{parts.organization}/{parts.full}"
    return entry


def _use_name(found: About, parts: NameParts) -> None:
    """Fill what is still open from a model's name."""
    values = {
        "name": names.title(parts.full) if parts.full is not None else None,
        "organization": names.title(parts.organization) if parts.organization else None,
        "basename": parts.basename,
        "finetune": parts.finetune,
        "version": parts.version,
        "size_label": parts.size_label,
    }
    for key, value in values.items():
        if found.fields.get(key) is None:
            found.fields[key] = value


def _use_override(found: About, given: Values, path: Path) -> None:
    for key, value in given.items():
        short = key.removeprefix("general.")
        if short.startswith("sampling.") and short[9:] in _SAMPLING:
            found.sampling[short[9:]] = value
        elif short in _GENERAL:
            found.fields[short] = value
        elif short in ("base_models", "datasets", "tags", "languages"):
            if not isinstance(value, list):
                raise FileFormatError(path, "is no list", field=key)
            setattr(found, short, value)
        else:
            known = ", ".join(f"general.{k}" for k in _GENERAL[:4])
            raise FileFormatError(path, f"unknown key {key!r}", hint=f"known are {known}, ...")


def count_parameters(shapes: Mapping[str, Sequence[int]]) -> tuple[int, int, int, int]:
    """Values in all, those outside experts, those of one expert (of each layer), and experts."""
    total = shared = per_expert = n_experts = n_tensors = 0
    for name, ne in shapes.items():
        size = prod(ne)
        total += size
        if "_exps." in name and len(ne) >= (2 if ".bias" in name else 3):
            count = ne[-1]
            per_expert += size // count
            n_experts += count
            n_tensors += 1
        else:
            shared += size
    return total, shared, per_expert, n_experts // n_tensors if n_tensors else 0


def of_architecture(
    arch: ModuleType, params: Params, config: Mapping[str, Any], file_type: int, where: str
) -> tuple[Values, Values]:
    """The model's numbers under its architecture's keys, in the order of the architecture: those
    that stand in front of everything, and the others."""
    said = type(params).said(config, where)

    def chosen(names: Iterable[str]) -> Values:
        return _chosen(names, said, params, file_type)

    return chosen(getattr(arch, "FIRST_KEYS", ())), chosen(getattr(arch, "KEYS", STANDARD_KEYS))


def _chosen(names: Iterable[str], said: Values, params: Params, file_type: int) -> Values:
    found: Values = {}
    for key in names:
        if key == keys.FILE_TYPE:
            found[key] = file_type
        elif key == "vocab_size":
            found[keys.of(params.arch, key)] = params.n_vocab
        elif key in said:
            value = said[key]
            found[keys.of(params.arch, key)] = list(value) if isinstance(value, tuple) else value
    return found


_POOLINGS = {
    "mean": ("pooling_mode_mean_tokens", 1),
    "cls": ("pooling_mode_cls_token", 2),
    "lasttoken": ("pooling_mode_lasttoken", 3),
}


def pooling(checkpoint: Checkpoint) -> int | None:
    """How sentence-transformers makes one vector of many, by llama.cpp's number; None if it is not
    said. ModelError for another way."""
    path = checkpoint.folder / "modules.json"
    if not path.is_file():
        return None
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        folder = next((m["path"] for m in modules if m["type"].endswith("Pooling")), None)
    except (OSError, ValueError, TypeError, KeyError):
        raise FileFormatError(path, "is no list of modules") from None
    if folder is None:
        return None
    config = checkpoint.json(f"{folder}/config.json")
    for name, (flag, number) in _POOLINGS.items():
        if config.get(flag) or config.get("pooling_mode") == name:
            return number
    raise ModelError(f"{checkpoint.folder}/{folder}: pools in a way that is not supported")


def typed(
    values: Mapping[str, Any],
) -> Iterable[tuple[str, Any, ValueType | None, ValueType | None]]:
    """(key, value, type, type of elements), types None to guess; without empty texts and lists,
    which GGUF files made by gguf-py do not have."""
    for key, value in values.items():
        plain, kind = value if isinstance(value, tuple) else (value, None)
        if plain in ("", []):
            continue
        if isinstance(plain, list) and isinstance(plain[0], str | bytes):
            yield key, plain, ValueType.ARRAY, ValueType.STRING
        else:
            yield key, plain, kind, None
