"""Machine code on disk: found by what it was made from, loaded with llvmlite alone.

A program whose kernels are all here never imports numba. Files are written whole or not at all,
and carry a checksum: several processes may share a folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from llamapy.core import settings
from llamapy.core.log import log
from llamapy.native import levels

ENTRY = "llamapy_entry"
MAGIC = b"llamapy machine code 1\n"
_OLD = 60 * 86400.0  # seconds that a file may go unused
_engines: list[Any] = []  # own the memory of the code: kept to the end, as addresses are given away
_C_TYPES: dict[str, Any] = {
    "void": None,
    "i64": ctypes.c_int64,
    "f64": ctypes.c_double,
    "f32": ctypes.c_float,
}


@dataclass(frozen=True)
class Code:
    """An object file, what its entry returns (void, i64, f64), and the names it needs from C."""

    data: bytes
    result: str
    outside: tuple[str, ...]


class Loaded:
    """Code in memory: `call` from Python (without the GIL), `address` for compiled callers."""

    def __init__(self, code: Code, kinds: tuple[str, ...]) -> None:
        import llvmlite.binding as llvm

        module = llvm.parse_assembly("")
        engine = llvm.create_mcjit_compiler(module, _machine())
        engine.add_object_file(llvm.ObjectFileRef.from_data(code.data))
        engine.finalize_object()
        _engines.append(engine)
        self.address = int(engine.get_function_address(ENTRY))
        arguments: list[Any] = []
        for kind in kinds:
            if kind.startswith("("):  # a group of integers
                arguments += [ctypes.c_int64] * int(kind[1 : kind.index(")")])
            else:
                arguments.append(_C_TYPES.get(kind, ctypes.c_int64))
        self.call = ctypes.CFUNCTYPE(_C_TYPES[code.result], *arguments)(self.address)


def read(name: str, key: str) -> Code | None:
    """The code that was kept under this name and key, if it is whole and can be loaded here."""
    path = _path(name, key)
    if path is None:
        return None
    try:
        raw = path.read_bytes()
        if time.time() - path.stat().st_mtime > 86400:
            os.utime(path)
    except OSError:
        return None
    head, _, rest = raw.removeprefix(MAGIC).partition(b"\n")
    if not raw.startswith(MAGIC) or head.decode("ascii", "replace") != _checksum(rest):
        return None
    about, _, data = rest.partition(b"\n")
    fields = json.loads(about)
    code = Code(data, fields["result"], tuple(fields["outside"]))
    return code if loadable(code) else None


def write(name: str, key: str, code: Code) -> None:
    """Keep `code`; files of the same name that nobody has used for long are removed."""
    path = _path(name, key)
    if path is None:
        return
    about = json.dumps({"result": code.result, "outside": code.outside}).encode()
    rest = about + b"\n" + code.data
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(MAGIC + _checksum(rest).encode() + b"\n" + rest)
        os.replace(file.name, path)
        for other in path.parent.glob(f"{name}.*.o"):
            if time.time() - other.stat().st_mtime > _OLD:
                other.unlink(missing_ok=True)
    except OSError as error:
        log.warning("compiled kernels cannot be kept in %s: %s", path.parent, error)


def loadable(code: Code) -> bool:
    """Whether every name that the code needs is there; LLVM would end the process otherwise."""
    import llvmlite.binding as llvm

    _machine()
    if not _engines:  # the first engine makes the names of this process known
        _engines.append(llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine()))
    return all(llvm.address_of_symbol(name) for name in code.outside)


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@cache
def host() -> str:
    """What compiled code depends on besides sources: versions, the processor, the SIMD level."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features().flatten()
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    versions = f"{python} {installed('numba')} {installed('llvmlite')}"
    return f"{versions} {llvm.get_host_cpu_name()} {features} {levels.chosen()}"


def installed(package: str) -> str:
    """The version of a package that is not imported, as the name of what pip noted beside it says
    it: importlib.metadata takes 40 ms to be loaded, and is only asked if there is no such note."""
    spec = find_spec(package)
    if spec is not None and spec.origin is not None:
        notes = list(Path(spec.origin).parents[1].glob(f"{package}-*.dist-info"))
        if len(notes) == 1:
            return notes[0].stem.partition("-")[2]
    from importlib.metadata import version

    return version(package)


@cache
def _machine() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    x86 = target.name.startswith("x86")
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        reloc="static" if x86 else "default",
        codemodel="jitdefault",
        jit=True,
    )


def _path(name: str, key: str) -> Path | None:
    root = folder()
    return root / f"{name}.{key}.o" if root else None


@cache
def folder() -> Path | None:
    """The first folder that can be written: the setting, the user's cache, a private temporary
    one; else none."""
    explicit = settings.kernel_cache_dir()
    owner = getattr(os, "getuid", lambda: 0)()
    temporary = Path(tempfile.gettempdir()) / f"llamapy-kernels-{owner}"
    for root in [Path(explicit)] if explicit else [settings.cache_dir() / "kernels", temporary]:
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if root == temporary and root.stat().st_uid != owner:
                continue  # somebody else's code
            with tempfile.TemporaryFile(dir=root):
                return root
        except OSError:
            continue
    log.warning(
        "no folder for compiled kernels can be written: they are compiled anew at every start"
    )
    return None
