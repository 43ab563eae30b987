"""A Hugging Face folder: its configuration, and its tensors wherever they lie in its files.

Order of tensors: by file name, then by name within the file, as convert_hf_to_gguf.py reads them.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llamapy.convert import safetensors
from llamapy.convert.safetensors import Stored
from llamapy.core.errors import FileFormatError, ModelError, UsageError
from llamapy.gguf.limits import shown

INDEX = "model.safetensors.index.json"
MAX_JSON = 1 << 30
_NESTED = ("text_config", "llm_config", "lm_config", "language_config")
_LISTED = 10


@dataclass(frozen=True)
class Checkpoint:
    """folder   where it is
    config   config.json with the text model's part lifted to the top
    tensors  by name, in order
    """

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Stored] = field(default_factory=dict)
    _read: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def architecture(self) -> str:
        """The Hugging Face class."""
        names = self.config.get("architectures")
        if not isinstance(names, list) or not names or not isinstance(names[0], str):
            raise ModelError(
                f"{self.folder}/config.json: no architectures", hint="which model is it?"
            )
        return names[0]

    def json(self, name: str) -> dict[str, Any]:
        """The object in this file of the folder, read once; empty if there is no such file."""
        if name not in self._read:
            path = self.folder / name
            self._read[name] = read_json(path) if path.is_file() else {}
        return self._read[name]

    def text(self, name: str) -> str | None:
        """The text of this file of the folder; None if there is no such file."""
        path = self.folder / name
        if not path.is_file():
            return None
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FileFormatError(path, f"cannot be read: {error}") from None

    @property
    def files(self) -> list[str]:
        """Paths of the tensor files."""
        return list(dict.fromkeys(one.path for one in self.tensors.values()))


def open_folder(folder: str | os.PathLike[str], *, with_tensors: bool = True) -> Checkpoint:
    """Read configuration and tensor headers. Errors name the file and what it lacks."""
    path = Path(folder)
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        raise UsageError(f"{path}: {what}", hint="give the folder that has config.json in it")
    if not (path / "config.json").is_file():
        raise ModelError(f"{path}: no config.json", hint="is this a Hugging Face model folder?")
    config = _lifted(read_json(path / "config.json"))
    return Checkpoint(path, config, _tensors(path) if with_tensors else {})


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. FileFormatError if the file holds none."""
    try:
        if path.stat().st_size > MAX_JSON:
            raise FileFormatError(path, f"has {path.stat().st_size} bytes")
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise FileFormatError(path, f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0][:200]
        raise FileFormatError(path, f"not JSON: {reason}") from None
    if not isinstance(found, dict):
        raise FileFormatError(path, "not a JSON object")
    return found


def _lifted(config: dict[str, Any]) -> dict[str, Any]:
    """The keys of the text model of a larger one at the top, too; its architecture is the class."""
    for name in _NESTED:
        inner = config.get(name)
        if isinstance(inner, dict):
            return {
                **config,
                **{k: v for k, v in inner.items() if v is not None or k not in config},
            }
    return config


def _tensors(folder: Path) -> dict[str, Stored]:
    index = folder / INDEX
    by_file = _indexed(index) if index.is_file() else {}
    names = sorted(by_file) or sorted(
        p.name
        for p in folder.iterdir()
        if p.name.startswith("model") and p.suffix == ".safetensors"
    )
    if not names:
        raise _none(folder)
    missing = [n for n in names if not (folder / n).is_file()]
    if missing:
        parts = [f"{n} ({len(by_file[n])} tensors)" for n in missing[:_LISTED]]
        more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
        raise ModelError(
            f"{folder}: {len(missing)} of {len(names)} files that {INDEX} names are missing: "
            f"{', '.join(parts)}{more}"
        )
    found: dict[str, Stored] = {}
    for name in names:
        for key, one in safetensors.tensors(folder / name).items():
            if key in found:
                first = os.path.basename(found[key].path)
                raise FileFormatError(
                    one.path, f"is also in {first}", field=f"tensor {shown(key)}", offset=one.offset
                )
            found[key] = one
    _compare_with_index(index, by_file, found)
    return found


def _indexed(index: Path) -> dict[str, list[str]]:
    """{file: its tensors} of an index."""
    weights = read_json(index).get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(v, str) for v in weights.values()):
        raise FileFormatError(index, "is no object of file names", field="weight_map")
    by_file: dict[str, list[str]] = {}
    for tensor, name in weights.items():
        if os.path.basename(name) != name or not name.endswith(".safetensors"):
            raise FileFormatError(
                index, f"names {shown(name)}", field=f"weight_map {shown(tensor)}"
            )
        by_file.setdefault(name, []).append(tensor)
    return by_file


def _compare_with_index(
    index: Path, by_file: dict[str, list[str]], found: dict[str, Stored]
) -> None:
    if not by_file:
        return
    lost = Counter(name for name, keys in by_file.items() for key in keys if key not in found)
    if lost:
        parts = ", ".join(f"{name} lacks {n} of {len(by_file[name])}" for name, n in lost.items())
        raise ModelError(f"{index}: tensors are missing: {parts}")
    known = {key for keys in by_file.values() for key in keys}
    extra = [key for key in found if key not in known]
    if extra:
        names = ", ".join(map(shown, extra[:5]))
        raise ModelError(f"{index}: {len(extra)} tensors are not in the index: {names}")


def _none(folder: Path) -> ModelError:
    others = sorted(
        p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt")
    )
    if others:
        return ModelError(
            f"{folder}: only {others[0]}, which can run code when it is read, and no safetensors",
            hint="load it with transformers where you trust it and call"
            " save_pretrained(folder, safe_serialization=True)",
        )
    return ModelError(f"{folder}: no model*.safetensors", hint="is the download complete?")
