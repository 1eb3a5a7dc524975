"""Reading, arithmetic and writing overlap: the bytes, their order and what goes wrong are as if they did not."""

import errno
import hashlib
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paritas import ahead as ahead_module
from paritas.ahead import ahead
from paritas.package import stream as stream_module
from paritas.package.stream import Stream, stream
from paritas.weights import Computed


def test_a_file_has_what_it_was_given_in_order(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pieces = [random.bytes(int(size)) for size in [0, 1, 5000, 3 << 20, 7, 1 << 20, *random.integers(0, 4000, 3000)]]
    with stream(tmp_path / "file") as file:
        for piece in pieces:
            file.write(memoryview(piece))
        digest = file.finish()
        assert file.position == sum(map(len, pieces))
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)
    assert digest == hashlib.sha256(b"".join(pieces)).hexdigest()


def give(file: Stream, mebibytes: int, given: list[int] | None = None) -> None:
    for _ in range(mebibytes):
        file.write(memoryview(bytes(1 << 20)))
        if given is not None:
            given.append(1)


class Slow:
    """A disk on which each write waits until it may."""

    def __init__(self) -> None:
        self.go, self.seen = threading.Event(), 0

    def write(self, data: Any) -> None:
        self.go.wait(30)
        self.seen += len(data)


def test_no_more_waits_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "WAITING_BYTES", 4 << 20)
    with stream_module.ThreadPoolExecutor(1) as writing, stream_module.ThreadPoolExecutor(1) as summing:
        disk: Any = Slow()
        file = Stream(disk, writing, summing)
        given: list[int] = []
        giving = threading.Thread(target=give, args=(file, 12, given))
        giving.start()
        giving.join(0.3)
        assert len(given) == 4  # the fifth waits
        disk.go.set()
        giving.join(30)
        file.finish()
        assert disk.seen == 12 << 20


class Full:
    def write(self, data: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")


def test_what_fails_in_the_other_thread_is_raised_in_this_one() -> None:
    with stream_module.ThreadPoolExecutor(1) as writing, stream_module.ThreadPoolExecutor(1) as summing:
        disk: Any = Full()
        file = Stream(disk, writing, summing)
        with pytest.raises(OSError, match="no space left"):
            give(file, 100)


def interrupted(path: Path) -> None:
    with stream(path) as file:
        give(file, 8)
        raise KeyboardInterrupt


def test_what_ends_early_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "file")
    assert threading.active_count() == before


@pytest.fixture(params=[1, 2, 5])
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(ahead_module, "WORKERS", request.param)
    return request.param


def test_results_come_in_order_and_few_ahead(workers: int) -> None:
    taken = itertools.count()
    newest = 0

    def items() -> Iterator[int]:
        nonlocal newest
        for item in range(60):
            newest = item
            yield item

    def slow_at_first(item: int) -> int:
        time.sleep(0.002 if item % 7 == 0 else 0)
        return item * item

    for result in ahead(slow_at_first, items()):
        done = next(taken)
        assert result == done * done
        assert newest - done <= 2 * workers
    assert next(taken) == 60


@pytest.mark.usefixtures("workers")
def test_what_one_result_fails_with_is_raised_at_its_place() -> None:
    results = ahead(lambda item: 6 // (3 - item), range(9))
    assert [next(results) for _ in range(3)] == [2, 3, 6]
    with pytest.raises(ZeroDivisionError):
        next(results)


@pytest.mark.parametrize("shape", [(1, 1), (16, 33), (17, 40), (1000, 7), (5, 3000)])
def test_a_transposed_matrix_comes_in_rows(shape: tuple[int, int]) -> None:
    matrix = np.random.default_rng(1).standard_normal(shape, np.float32)
    turned = Computed(shape, lambda start, stop: matrix[start:stop]).T
    assert np.array_equal(np.concatenate(list(turned.blocks())), matrix.T)
