"""How much memory this process has, and has had at most."""

from pathlib import Path
from typing import Any

import psutil


def memory() -> int:
    """Bytes that are resident now."""
    return psutil.Process().memory_info().rss


def peak_memory() -> int:
    """The most that were, since the program began. A child's ``ru_maxrss`` begins with its parent's; VmHWM does not."""
    status = Path("/proc/self/status")
    if status.is_file():
        (line,) = (line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) << 10
    told: Any = psutil.Process().memory_info()
    return int(getattr(told, "peak_wset", told.rss))
