"""How threads share work and wait for each other, in compiled code; and the walk over the node
records.

Shared words (one cache line each): how many have arrived, the generation of the barrier, the wish
to stop, the
decision to stop. Every thread sees the same decision because only the last to arrive at a barrier
takes it.

Two ways to share a node: contiguous blocks of rows (`block_of`), in all small steps, so that a
thread finds in its core's cache the rows that it wrote a step before (rows in turns made norms of
512 tokens three times as slow); and stealing (`next_chunk`), where a thread takes the next chunk
with an atomic add.
"""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu.record import BARRIER, BYTES, COUNTER, KERNEL
from llamapy.native import atomic, compiled, mem

ARRIVED, GENERATION, STOP, DECISION = 0, 64, 128, 192
SYNC_BYTES = 256
# After so many looks the core is given to others: a spinning barrier with more threads than
# cores collapses.
SPINS = 4000


@compiled
def barrier(sync, nth):  # type: ignore[no-untyped-def]
    """Wait until all threads are here. The last one decides whether to stop."""
    if nth == 1:
        mem.put_i64(sync, DECISION // 8, atomic.load(sync + STOP))
        return
    generation = atomic.load(sync + GENERATION)
    if atomic.add(sync + ARRIVED, np.int64(1)) == nth - 1:
        atomic.store(sync + ARRIVED, np.int64(0))
        mem.put_i64(sync, DECISION // 8, atomic.load(sync + STOP))
        atomic.store(sync + GENERATION, generation + 1)
        return
    spins = 0
    while atomic.load(sync + GENERATION) == generation:
        spins += 1
        if spins > SPINS:
            atomic.give_way()


@compiled
def rows_of_chunk(n, nth):
    """How many of n rows of weights a thread takes at a time: long runs, which memory gives faster,
    but some for each thread, so that a slow one is helped."""
    return max(32, (n + 4 * nth - 1) // (4 * nth))


@compiled
def next_chunk(node, sync):  # type: ignore[no-untyped-def]
    """The number of the next chunk of this node; past the end of any work when the run is being
    stopped."""
    if atomic.load(sync + STOP) != 0:
        return np.int64(1) << 60
    return atomic.add(mem.i64(node, COUNTER), np.int64(1))


@compiled
def block_of(n, ith, nth):  # type: ignore[no-untyped-def]
    """(first, last + 1) of this thread's contiguous share of n."""
    per = (n + nth - 1) // nth
    first = min(per * ith, n)
    return first, min(first + per, n)


@compiled
def timed_walk(nodes, n_nodes, ith, nth, sync, stamps, clock):  # type: ignore[no-untyped-def]
    """As `walk`; notes when this thread began and ended each node: pairs of nanoseconds at
    `stamps`."""
    mine = stamps + 16 * ith * n_nodes
    for i in range(n_nodes):
        node = nodes + i * BYTES
        mem.put_i64(mine, 2 * i, atomic.clock(clock))
        atomic.call_kernel(mem.i64(node, KERNEL), node, ith, nth, sync)
        mem.put_i64(mine, 2 * i + 1, atomic.clock(clock))
        if mem.i64(node, BARRIER) != 0:
            barrier(sync, nth)
            if mem.i64(sync, DECISION // 8) != 0:
                return 1
    return 0


@compiled
def walk(nodes, n_nodes, ith, nth, sync):  # type: ignore[no-untyped-def]
    """Run every node's kernel in order; 1 if stopped before the end."""
    for i in range(n_nodes):
        node = nodes + i * BYTES
        atomic.call_kernel(mem.i64(node, KERNEL), node, ith, nth, sync)
        if mem.i64(node, BARRIER) != 0:
            barrier(sync, nth)
            if mem.i64(sync, DECISION // 8) != 0:
                return 1
    return 0
