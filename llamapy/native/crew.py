"""Compiling several functions at once, each in another process: numba works under the GIL.

A process reads one job a line (module, name, arguments), compiles it into the folder of machine
code, and answers with a line. It ends when its input does, or when nothing comes for a while.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from llamapy.native import sources, store
from llamapy.native.jit import Compiled, Kernel

IDLE_S = 20.0
_PACKAGE = __name__.partition(".")[0]
_ROOT = str(Path(importlib.import_module(_PACKAGE).__path__[0]).parent)

# What is to be compiled: a kernel and its two types, or a function and the types of its arguments.
Wanted = tuple[Kernel | Compiled, tuple[Any, ...]]
Job = tuple[str, str, list[str]]
ALWAYS: dict[Wanted, None] = {}


def always(what: Kernel | Compiled, *types: Any) -> None:
    """From now on `load` loads this, too: what every run needs and no step of a graph calls."""
    ALWAYS[what, types] = None


def load(
    wanted: Sequence[Wanted], n: int, report: Callable[[str, int, int], None] | None = None
) -> int:
    """Load all, and what is `always` wanted; those that are not on the disk are compiled, in up to
    n processes, and counted.

    report(name, done, total) while there is something to compile, at last with done = total.
    """
    report = report or (lambda name, done, total: None)
    wanted = list(dict.fromkeys([*wanted, *ALWAYS]))
    missing = [(what, types) for what, types in wanted if not what.load_kept(*types)]
    total = len(missing)
    if not missing:
        return 0
    report(missing[0][0].__name__, 0, total)
    build(missing, n, lambda name, done: report(name, min(done, total - 1), total))
    for what, types in missing:
        report(what.__name__, total - 1, total)
        what.load(*types)
    report("", total, total)
    return total


def build(wanted: Sequence[Wanted], n: int, report: Callable[[str, int], None]) -> None:
    """Compile what is wanted in up to n processes; report(name, how many are done) at each end.

    Returns when all is on the disk. What a process could not do is left out: whoever needs it
    compiles it, and sees the error. KeyboardInterrupt ends the processes.
    """
    wanted = [one for one in wanted if one[0].function.__module__.startswith(f"{_PACKAGE}.")]
    if n < 2 or not wanted or store.folder() is None or (len(wanted) < 2 and not _all):
        return  # as fast without
    waiting: deque[Job] = deque(_job(*one) for one in sorted(wanted, key=_size, reverse=True))
    ended: queue.Queue[str] = queue.Queue()
    workers = _workers(min(n, len(wanted)))
    for worker in workers:
        threading.Thread(target=worker.work, args=(waiting, ended), daemon=True).start()
    try:
        for done in range(1, len(wanted) + 1):
            report(_next(ended), done)
    except BaseException:
        waiting.clear()
        close()
        raise


def close() -> None:
    """End all processes at once."""
    while _all:
        _all.pop().end()


class _Worker:
    """A process, and the thread's work of feeding it."""

    def __init__(self) -> None:
        path = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import work; work()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )

    def end(self) -> None:
        """Kill the process, if it has not ended, and forget it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # a line that it has not read
                assert pipe is not None
                pipe.close()

    def work(self, waiting: deque[Job], ended: queue.Queue[str]) -> None:
        """Take jobs until none is left. A process that died takes its jobs without doing them."""
        assert self.process.stdin is not None and self.process.stdout is not None
        while waiting:
            try:
                job = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                self.process.stdin.write(json.dumps(job).encode() + b"\n")
                self.process.stdin.flush()
                self.process.stdout.readline()
            except (OSError, ValueError):
                pass
            ended.put(" ".join([job[1], *job[2]]).strip())


_all: list[_Worker] = []
atexit.register(close)


def _workers(n: int) -> list[_Worker]:
    for worker in [one for one in _all if one.process.poll() is not None]:
        _all.remove(worker)
        worker.end()
    while len(_all) < n:
        _all.append(_Worker())
    return _all[:n]


def _next(ended: queue.Queue[str]) -> str:
    """As ended.get(), but a signal is heard meanwhile."""
    while True:
        try:
            return ended.get(timeout=0.1)
        except queue.Empty:
            continue


def _job(what: Kernel | Compiled, arguments: tuple[Any, ...]) -> Job:
    names = [a if isinstance(a, str) else a.__name__ for a in arguments]
    return what.function.__module__, what.function.__name__, names


def _size(one: Wanted) -> int:
    """How much there is to compile, about: the functions that it reaches."""
    reached: set[int] = set()
    sources.files(one[0].function, tuple(a for a in one[1] if isinstance(a, str)), reached)
    return len(reached)


def work() -> None:
    """The process: jobs from stdin, a line on stdout for each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    while line := _line():
        module, name, arguments = json.loads(line)
        try:
            what = getattr(importlib.import_module(module), name)
            if isinstance(what, Kernel):
                what.address(*arguments)
            else:
                what.entry(tuple({"int": int, "float": float}[a] for a in arguments))
            answer = "done"
        except Exception as error:  # noqa: BLE001 - the parent will meet it itself
            answer = repr(error).replace("\n", " ")
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


def _line() -> bytes:
    """The next line of stdin, empty at the end or after a while without one."""
    try:
        if not select.select([sys.stdin.buffer], [], [], IDLE_S)[0]:
            return b""
    except (OSError, ValueError):  # a system that cannot wait for pipes
        pass
    return sys.stdin.buffer.readline()
