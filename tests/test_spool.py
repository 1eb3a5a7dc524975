"""Large arrays in files without a name: the same numbers, and no memory for them."""

from pathlib import Path

import numpy as np
import pytest

from paritas.verify import spool
from paritas.verify.compare import differ
from paritas.verify.spool import release, spooled

ROWS = np.random.default_rng(5).normal(size=(64, 1 << 17)).astype(np.float32)  # 32 MiB


def resident(kind: str) -> int:
    """Bytes of this process that are mapped from files (``RssFile``), or are not (``RssAnon``)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(kind)).split()[1]) << 10


def test_a_large_array_lies_in_a_file_and_is_the_same() -> None:
    kept = spooled(ROWS[:, ::-1])
    assert isinstance(kept, np.memmap)
    assert kept.dtype == ROWS.dtype
    assert np.array_equal(kept, ROWS[:, ::-1])
    assert not kept.flags.writeable


def test_a_small_array_is_a_copy() -> None:
    kept = spooled(ROWS[:2])
    assert kept.base is None
    assert np.array_equal(kept, ROWS[:2])


def test_without_room_it_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spool.tempfile, "TemporaryFile", full)
    assert spooled(ROWS) is ROWS


def test_what_was_read_is_let_go_and_can_be_read_again() -> None:
    kept = spooled(ROWS)
    before = resident("RssFile")
    total = kept.sum(dtype=np.float64)
    assert resident("RssFile") - before > ROWS.nbytes // 2
    release(kept[3:, :5])  # a view is of the same file
    assert resident("RssFile") - before < ROWS.nbytes // 8
    assert kept.sum(dtype=np.float64) == total
    release(ROWS)  # nothing to let go


def test_comparing_holds_no_more_than_a_block() -> None:
    kept, other = spooled(ROWS), spooled(ROWS + np.float32(1))
    before = resident("RssFile")
    apart, _ = differ(kept, other)
    assert resident("RssFile") - before < ROWS.nbytes // 8
    assert np.array_equal(apart, differ(ROWS, ROWS + np.float32(1))[0])
