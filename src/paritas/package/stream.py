"""Writes a file and sums it up while the next bytes are computed: three threads, and few bytes between them."""

import hashlib
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

_PIECE = 1 << 20  # bytes that are worth a change of threads
WAITING_BYTES = 16 << 20  # bytes that may wait to be written


class Stream:
    """A file that is being written, from its beginning to its end.

    What is given is written by another thread: it must not be changed afterwards. Whatever fails there is raised by one
    of the next calls.

    Attributes:
        position: bytes that it was given.
    """

    def __init__(self, file: BinaryIO, writing: ThreadPoolExecutor, summing: ThreadPoolExecutor) -> None:
        self.position = 0
        self._file, self._digest = file, hashlib.sha256()
        self._writing, self._summing = writing, summing
        self._small: list[memoryview] = []
        self._small_bytes = 0
        self._waiting: deque[tuple[int, Future[Any], Future[Any]]] = deque()
        self._waiting_bytes = 0

    def write(self, data: memoryview) -> None:
        """Hand over bytes; returns at once unless too many wait."""
        self.position += data.nbytes
        self._small.append(data)
        self._small_bytes += data.nbytes
        if self._small_bytes >= _PIECE:
            self._hand_over()
        while self._waiting_bytes > WAITING_BYTES:
            self._settle()

    def finish(self) -> str:
        """Wait until everything is written. Returns the SHA-256 of the file."""
        self._hand_over()
        while self._waiting:
            self._settle()
        return self._digest.hexdigest()

    def _hand_over(self) -> None:
        data = self._small[0] if len(self._small) == 1 else b"".join(self._small)
        size, self._small, self._small_bytes = self._small_bytes, [], 0
        written = self._writing.submit(self._file.write, data)
        summed = self._summing.submit(self._digest.update, data)
        self._waiting.append((size, written, summed))
        self._waiting_bytes += size

    def _settle(self) -> None:
        size, written, summed = self._waiting.popleft()
        written.result()
        summed.result()
        self._waiting_bytes -= size


@contextmanager
def stream(path: Path) -> Generator[Stream]:
    """A new file to write. However it ends, both threads have ended then."""
    with path.open("wb") as file, ThreadPoolExecutor(1) as writing, ThreadPoolExecutor(1) as summing:
        try:
            yield Stream(file, writing, summing)
        finally:
            for each in (writing, summing):
                each.shutdown(cancel_futures=True)
