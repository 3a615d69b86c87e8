"""What the machine itself allows: memory copies, page touching, disk, loopback, a socket round trip.

Needs numpy only. Run from the repository root: ``python -m bench.peers.limits --seconds 1``. The disk part writes and
removes one file of ``--disk-bytes`` in ``--disk-folder``.
"""

from __future__ import annotations

import mmap
import multiprocessing as mp
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench.measure import Meter, arguments

COPY_BYTES = 256 << 20
WRITE_BLOCK_BYTES = 4 << 20


def emit_rate(meter: Meter, workload: str, metric: str, operation: Callable[[], object], size: int) -> None:
    """Print the rate of an operation that moves ``size`` bytes, in GB/s."""
    if meter.wants(workload, metric):
        meter.emit(workload, metric, meter.rate(operation) * size / 1e9, "GB/s")


def memory(meter: Meter) -> None:
    """Copies of 256 MiB with one and two threads; numpy gathering rows of 28 KB into a ready buffer."""
    source, target = np.ones(COPY_BYTES, np.uint8), np.zeros(COPY_BYTES, np.uint8)
    emit_rate(meter, "memory", "copy, 1 thread", lambda: np.copyto(target, source), COPY_BYTES)
    half = COPY_BYTES // 2
    with ThreadPoolExecutor(2) as pool:

        def both() -> None:
            list(pool.map(lambda part: np.copyto(target[part], source[part]), (slice(0, half), slice(half, None))))

        emit_rate(meter, "memory", "copy, 2 threads", both, COPY_BYTES)
    rows = np.ones((20_000, 28_224), np.uint8)
    batch = np.empty((256, 28_224), np.uint8)
    rng = np.random.default_rng(0)

    def gather() -> None:
        np.take(rows, rng.integers(0, len(rows), len(batch)), axis=0, out=batch)

    emit_rate(meter, "memory", "take 256 x 28 KB", gather, batch.nbytes)


def pages(meter: Meter) -> None:
    """Writing shared memory whose pages are fresh, and again when they are there."""
    source = np.ones(COPY_BYTES, np.uint8)
    times: list[tuple[float, float]] = []
    for _ in range(meter.repeats):
        descriptor = os.memfd_create("bench-pages")
        os.ftruncate(descriptor, COPY_BYTES)
        with mmap.mmap(descriptor, COPY_BYTES) as mapping:
            target = np.frombuffer(mapping, np.uint8)
            begin = time.perf_counter()
            np.copyto(target, source)
            middle = time.perf_counter()
            np.copyto(target, source)
            times.append((middle - begin, time.perf_counter() - middle))
            del target
        os.close(descriptor)
    for place, metric in enumerate(("write, fresh", "write, present")):
        if meter.wants("pages", metric):
            meter.emit("pages", metric, COPY_BYTES / statistics.median(t[place] for t in times) / 1e9, "GB/s")


@contextmanager
def direct_file(folder: Path) -> Iterator[int]:
    """A descriptor of a fresh file opened with O_DIRECT, gone afterwards."""
    path = folder / f"bench-disk-{os.getpid()}.bin"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        path.unlink()


def disk(meter: Meter, folder: Path, size: int) -> None:
    """Writing the file once with 1 and 4 threads (fsync included), then random reads by block size and threads."""
    block = mmap.mmap(-1, WRITE_BLOCK_BYTES)
    block.write(os.urandom(WRITE_BLOCK_BYTES))
    with direct_file(folder) as descriptor:
        for threads in (1, 4):
            begin = time.perf_counter()
            with ThreadPoolExecutor(threads) as pool:
                offsets = range(0, size, WRITE_BLOCK_BYTES)
                list(pool.map(lambda offset: os.pwrite(descriptor, block, offset), offsets))
            os.fsync(descriptor)
            meter.emit("disk", f"write, {threads} threads", size / (time.perf_counter() - begin) / 1e9, "GB/s")
        rng = np.random.default_rng(0)
        for bytes_each, threads in ((64 << 10, 1), (64 << 10, 4), (1 << 20, 4), (1 << 20, 16)):
            blocks = rng.integers(0, size // bytes_each, 100_000)
            rate = read_rate(descriptor, blocks, bytes_each, threads, meter.seconds)
            meter.emit("disk", f"random read {bytes_each >> 10} KiB, {threads} threads", rate / 1e9, "GB/s")


def read_rate(
    descriptor: int, blocks: np.ndarray[tuple[int], np.dtype[np.int64]], size: int, threads: int, seconds: float
) -> float:
    """Bytes per second of random reads of ``size`` bytes by that many threads, for ``seconds``."""
    end = time.perf_counter() + seconds

    def read(places: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
        buffer = mmap.mmap(-1, size)
        done = 0
        for place in places:
            if time.perf_counter() >= end:
                break
            done += os.preadv(descriptor, [buffer], int(place) * size)
        return done

    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(read, np.array_split(blocks, threads)))
    return total / (time.perf_counter() - begin)


def drain(listener: socket.socket) -> None:
    """Receive one connection into a fixed buffer until it ends."""
    connection, _ = listener.accept()
    buffer = bytearray(WRITE_BLOCK_BYTES)
    while connection.recv_into(buffer):
        pass


def echo(end: socket.socket) -> None:
    """Answer every message until the other side closes."""
    while message := end.recv(8):
        end.send(message)


def sockets(meter: Meter) -> None:
    """One stream over loopback TCP; a round trip of 8 bytes over a Unix socket."""
    fork = mp.get_context("fork")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        receiver = fork.Process(target=drain, args=(listener,))
        receiver.start()
        with socket.create_connection(listener.getsockname()) as stream:
            data = bytes(WRITE_BLOCK_BYTES)
            emit_rate(meter, "loopback", "TCP, one stream", lambda: stream.sendall(data), len(data))
        receiver.join()
    here, there = socket.socketpair()
    answerer = fork.Process(target=echo, args=(there,))
    answerer.start()
    there.close()

    def round_trip() -> None:
        here.send(b"12345678")
        here.recv(8)

    if meter.wants("unix socket", "round trip"):
        meter.emit("unix socket", "round trip", 1e6 / meter.rate(round_trip), "us")
    answerer.kill()  # it holds a copy of our end, so closing ours would not end it
    answerer.join()


def main() -> None:
    args = arguments(
        "what the machine allows",
        disk_folder=(tempfile.gettempdir(), "where the disk is measured"),
        disk_bytes=(1 << 30, "size of the file"),
        parts=("memory,pages,disk,sockets", "which of memory, pages, disk, sockets"),
    )
    meter = Meter("limits", args.seconds, args.repeats, args.only)
    if "sockets" in args.parts:
        sockets(meter)
    if "memory" in args.parts:
        memory(meter)
    if "pages" in args.parts:
        pages(meter)
    if "disk" in args.parts:
        disk(meter, Path(args.disk_folder), args.disk_bytes)


if __name__ == "__main__":
    main()
