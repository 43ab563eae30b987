"""The thread budget: affinity, control groups of both versions, cores; and the pool."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from llamapy.backend.cpu import threads
from llamapy.backend.cpu.threads import Pool, budget


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Eight processors allowed; empty trees of control groups and of topology."""
    monkeypatch.setattr(threads, "_affinity", lambda: set(range(8)))
    for name in ("cgroup", "topology"):
        (tmp_path / name).mkdir()
    return tmp_path


def find(root: Path) -> int:
    return budget(root / "cgroup", root / "membership", root / "topology")


def test_affinity_alone(eight: Path) -> None:
    assert find(eight) == 8


@pytest.mark.parametrize(
    ("line", "want"),
    [("400000 100000", 4), ("350000 100000", 3), ("50000 100000", 1), ("max 100000", 8), ("x", 8)],
)
def test_quota_version_2(eight: Path, line: str, want: int) -> None:
    (eight / "cgroup" / "cpu.max").write_text(line + "\n")
    assert find(eight) == want


@pytest.mark.parametrize(("quota", "want"), [("200000", 2), ("-1", 8)])
def test_quota_version_1(eight: Path, quota: str, want: int) -> None:
    folder = eight / "cgroup" / "cpu"
    folder.mkdir()
    (folder / "cpu.cfs_quota_us").write_text(quota)
    (folder / "cpu.cfs_period_us").write_text("100000")
    assert find(eight) == want


def test_the_least_of_nested_groups_counts(eight: Path) -> None:
    inner = eight / "cgroup" / "a" / "b"
    inner.mkdir(parents=True)
    (eight / "cgroup" / "a" / "cpu.max").write_text("300000 100000")
    (inner / "cpu.max").write_text("max 100000")
    (eight / "membership").write_text("0::/a/b\n")
    assert find(eight) == 3


def test_two_processors_of_a_core_count_once(eight: Path) -> None:
    for cpu in range(8):
        folder = eight / "topology" / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}\n")
    assert find(eight) == 4


def test_a_wish_above_the_budget_is_capped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "budget", lambda: 2)
    monkeypatch.delenv("LLAMAPY_OVERSUBSCRIBE", raising=False)
    assert threads.choose(8) == 2 and "8 threads asked, 2 used" in caplog.text
    assert threads.choose(None) == threads.choose(0) == 2 and threads.choose(1) == 1
    monkeypatch.setenv("LLAMAPY_OVERSUBSCRIBE", "1")
    assert threads.choose(8) == 8


def test_a_pool_runs_a_job_once_on_each_thread() -> None:
    pool, seen = Pool(3), []
    pool.run(lambda ith: seen.append((ith, threading.get_ident())), lambda: None)
    pool.run(lambda ith: seen.append((ith, threading.get_ident())), lambda: None)
    assert sorted(ith for ith, _ in seen) == [0, 0, 1, 1, 2, 2]
    assert len({ident for _, ident in seen}) == 3
    with pytest.raises(ZeroDivisionError):
        pool.run(lambda ith: 1 // ith, lambda: None)
    pool.close()
