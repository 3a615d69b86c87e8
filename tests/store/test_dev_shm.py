"""A /dev/shm of 64 MB does not matter, and whoever fills it causes no SIGBUS."""

from __future__ import annotations

import os
from collections.abc import Callable

from pains import Program

PREFIX = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user", "--mount")

PROGRAM = """
import os, subprocess, sys, numpy as np, di_store
turn = int(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", "/dev/shm"], check=True)

def fill():
    with open("/dev/shm/foreign", "wb") as file:
        try:
            while True:
                file.write(bytes(1 << 20))
                file.flush()
        except OSError:
            return

if turn % 2:
    fill()
with di_store.open(memory="1GiB") as store:
    table = store.create_table("t", capacity=2_000, schema={"obs": di_store.Spec((84, 84, 4), "u1")})
    refs = [store.put(np.full(1 << 20, n, np.uint8), timeout=60) for n in range(100)]
    if not turn % 2:
        fill()
    assert os.statvfs("/dev/shm").f_bavail == 0
    try:
        with open("/dev/shm/more", "wb") as file:
            file.write(bytes(1 << 20))
        raise SystemExit("/dev/shm was not full")
    except OSError:
        pass
    pid = os.fork()
    for n in range(100, 200):
        refs.append(store.put(np.full(1 << 20, n, np.uint8), timeout=60))
    with table.writer() as writer:
        for n in range(200):
            writer.append({"obs": np.full((84, 84, 4), n, np.uint8)}, timeout=60)
    batch = table.sample(32, timeout=60).data["obs"]
    assert (batch == batch[:, :1, :1, :1]).all()
    for n, ref in enumerate(refs):
        assert (store.get(ref)[:: 4096] == n).all()
    if pid == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert store.check() == []
    # Nothing of it lies where it could be truncated, and no other medium took its place.
    assert set(os.listdir("/dev/shm")) <= {"foreign", "more"}
    links = [os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if number.isdigit()
             and os.path.lexists(f"/proc/self/fd/{number}")]
    assert any(link.startswith("/memfd:di-store:") for link in links), links
print("fine")
"""


def test_a_full_dev_shm_does_not_matter(count: Callable[[int, int], int]) -> None:
    """Filled before the store is made, and while it works; not one signal in ten runs."""
    for turn in range(count(2, 10)):
        with Program(PROGRAM, turn, prefix=PREFIX) as program:
            out, err = program.finish()
        assert out == "fine\n"
        assert "Error" not in err, err
