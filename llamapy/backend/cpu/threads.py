"""How many threads to use, and a pool of them that runs compiled work while the caller waits and
can be interrupted."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from llamapy.core import settings
from llamapy.core.errors import Aborted
from llamapy.core.log import log


def budget(
    cgroup_root: Path = Path("/sys/fs/cgroup"),
    membership: Path = Path("/proc/self/cgroup"),
    topology: Path = Path("/sys/devices/system/cpu"),
) -> int:
    """min(affinity, floor(cgroup quota), physical cores), at least 1."""
    allowed = _affinity()
    found = [len(allowed)]
    quota = _quota(cgroup_root, membership)
    if quota is not None:
        found.append(int(quota))
    cores = _physical_cores(allowed, topology)
    if cores:
        found.append(cores)
    return max(1, min(found))


def choose(asked: int | None) -> int:
    """The number of threads for a wish of `asked` (None or 0: the budget). Above the budget:
    capped, with a warning."""
    most = budget()
    if not asked or asked < 0:
        return most
    if asked > most and not settings.oversubscribe():
        log.warning(
            "%d threads asked, %d used: more are not available to this process", asked, most
        )
        return most
    return asked


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _quota(root: Path, membership: Path) -> float | None:
    """CPUs that the control groups of this process allow (the least over all parents); None
    without a limit."""
    limits = [
        q for folder in _group_folders(root, membership) if (q := _folder_quota(folder)) is not None
    ]
    return min(limits) if limits else None


def _group_folders(root: Path, membership: Path) -> list[Path]:
    folders = [root, root / "cpu"]
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        base = root if not controllers else root / "cpu"
        if controllers and "cpu" not in controllers.split(","):
            continue
        parts = [p for p in path.split("/") if p]
        folders += [base.joinpath(*parts[:n]) for n in range(1, len(parts) + 1)]
    return folders


def _folder_quota(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()[:2]
        return None if quota == "max" else max(int(quota), 1) / max(int(period), 1)
    except (OSError, ValueError):
        pass
    try:
        quota_us = int((folder / "cpu.cfs_quota_us").read_text())
        period_us = int((folder / "cpu.cfs_period_us").read_text())
        return quota_us / period_us if quota_us > 0 and period_us > 0 else None
    except (OSError, ValueError):
        return None


def _physical_cores(allowed: set[int], topology: Path) -> int:
    """Distinct cores among the allowed processors; 0 if the system does not say."""
    cores = set()
    for cpu in allowed:
        try:
            cores.add(
                (topology / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
            )
        except OSError:
            return 0
    return len(cores)


class Pool:
    """`n` threads that sleep between jobs. `run(job)` calls job(ith) on each and returns when all
    are done.

    A lock for each thread to wait for work, and one to say that it is done: a decode of a small
    model is a few milliseconds, so waking must cost as little as Python can.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._job: Callable[[int], object] | None = None
        self._error: BaseException | None = None
        self._wake = [_closed() for _ in range(n)]
        self._done = [_closed() for _ in range(n)]
        self._ended = [True] * n
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=f"llamapy-{i}", daemon=True)
            for i in range(n)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, job: Callable[[int], object], stop: Callable[[], None]) -> None:
        """Run and wait. On Ctrl-C call `stop` (which makes the jobs end soon), wait for them,
        raise KeyboardInterrupt."""
        self._wait(stop)  # for a job that a second Ctrl-C left behind
        self._job, self._error = job, None
        self._ended = [False] * self.n
        for wake in self._wake:
            wake.release()
        interrupt = self._wait(stop)
        if interrupt is not None:
            raise interrupt
        if self._error is not None:
            raise self._error

    def _wait(self, stop: Callable[[], None]) -> KeyboardInterrupt | None:
        """Until every thread has ended its job; the interrupt that came meanwhile."""
        interrupt = None
        while not all(self._ended):
            try:
                for ith, done in enumerate(self._done):
                    # An interrupt may come between taking the lock and noting that we have it: what
                    # counts is what the thread has noted before.
                    while not self._ended[ith]:
                        done.acquire()
            except KeyboardInterrupt as signal:
                interrupt = signal
                stop()
        return interrupt

    def _work(self, ith: int) -> None:
        while True:
            self._wake[ith].acquire()
            job = self._job
            if job is None:
                return
            try:
                job(ith)
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
                self._error = error
            self._ended[ith] = True
            _open(self._done[ith])

    def close(self) -> None:
        """End the threads. The pool cannot be used afterwards."""
        self._job = None
        for wake in self._wake:
            _open(wake)
        for thread in self._threads:
            thread.join(1.0)


def _closed() -> threading.Lock:
    """A lock that nobody can take."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def _open(lock: threading.Lock) -> None:
    if lock.locked():
        lock.release()


__all__ = ["Aborted", "Pool", "budget", "choose"]
