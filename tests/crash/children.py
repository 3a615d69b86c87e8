"""Work in a forked child."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable


def in_child(work: Callable[[], None], seconds: int = 0) -> int:
    """Fork, work, and the pid; the child's exit code tells whether it went well, and SIGALRM (0: never) ends it."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def join(pid: int) -> int:
    """Exit code of a forked child."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
