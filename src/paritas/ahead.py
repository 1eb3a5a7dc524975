"""Results in order, of which threads compute the next ones while the last is used."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

WORKERS = max(1, min(8, os.cpu_count() or 1))


def ahead(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """``function`` of each item, for work that leaves Python's lock alone (numpy's does); two results a worker wait."""
    if WORKERS == 1:
        yield from map(function, items)
        return
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > 2 * WORKERS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
