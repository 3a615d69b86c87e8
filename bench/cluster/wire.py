"""Bare sockets: what this machine's loopback and TLS give, without any protocol. And peers of other nodes."""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import di_store
from bench.kit import Worker, time_alone

SIZE = struct.Struct("<Q")
PIECE = 1 << 20


def answers(pipe: Any, folder: str | None) -> None:
    """In a process of its own: send as many bytes as each request asks for; `folder`: has a certificate."""
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname()[1])
    data = memoryview(np.random.default_rng(0).integers(0, 255, 64 << 20, np.uint8).tobytes())
    sock: Any = listener.accept()[0]
    if folder is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
        sock = context.wrap_socket(sock, server_side=True)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while len(asked := sock.recv(SIZE.size)) == SIZE.size:
        left = SIZE.unpack(asked)[0]
        while left:
            left -= sock.send(data[: min(left, PIECE)])


def bulk(pipe: Any, address: str, ref: di_store.Ref) -> None:
    """In a process of its own: read an object again and again."""
    with di_store.connect(address) as store:
        while store.get(ref) is not None and not pipe.poll():
            pass


class Raw:
    """The client's end: `get(n)` reads n bytes into memory that is there. The other one ends with this process."""

    def __init__(self, folder: Path | None) -> None:
        worker = Worker(answers, None if folder is None else str(folder))
        self.sock: Any = socket.create_connection(("127.0.0.1", worker.pipe.recv()))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if folder is not None:
            context = ssl.create_default_context(cafile=f"{folder}/cert.pem")
            self.sock = context.wrap_socket(self.sock, server_hostname="localhost")
        self.buffer = memoryview(np.ones(64 << 20, np.uint8).data).cast("B")

    def get(self, size: int) -> None:
        """Ask for so many bytes, and read them."""
        self.sock.sendall(SIZE.pack(size))
        have = 0
        while have < size:
            have += self.sock.recv_into(self.buffer[have:size])


def certificate(folder: Path) -> tuple[str, str]:
    """A certificate of 127.0.0.1 and its key, as files of a folder."""
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext"
    names = ["subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"]
    subprocess.run([*words.split(), *names], check=True, capture_output=True)
    return f"{folder}/cert.pem", f"{folder}/key.pem"


def median_ms(call: Callable[[], object], seconds: float) -> float:
    """Of one call, in ms."""
    return float(np.median(time_alone(call, seconds))) / 1e6


def ray_gets(sizes: list[int], rounds: int) -> dict[int, list[float]]:
    """By size, milliseconds of `ray.get` of an object on another node of this machine, each of another object."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 2 << 30})
    cluster.add_node(num_cpus=1, object_store_memory=2 << 30, resources={"other": 1})
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")

    put: Any = ray.remote(resources={"other": 0.1})(lambda size: [ray.put(np.ones(size, np.uint8))])
    taken: dict[int, list[float]] = {}
    for size in sizes * rounds:
        times = []
        for _ in range(12):
            (reference,) = ray.get(put.remote(size))
            begin = time.perf_counter()
            ray.get(reference)
            times.append((time.perf_counter() - begin) * 1e3)
        taken.setdefault(size, []).append(float(np.median(times)))
    ray.shutdown()
    cluster.shutdown()
    return taken
