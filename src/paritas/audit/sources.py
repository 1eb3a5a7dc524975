"""The checkpoint's side of weight identity: rows and their hashes, in the dtype that the package has."""

from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paritas.audit.hashing import Hashes, of_rows
from paritas.casts import CASTS, Rows
from paritas.checkpoint import Tensor
from paritas.runtime.stored import BLOCK


class Source:
    """A matrix of the checkpoint, whose rows are hashed when they are first asked for; or a vector, with its values.

    Attributes:
        name: under the text model's own name.
        shape: as the checkpoint has it.
        rows, columns: of the matrix, all leading axes together.
        first: its first row.
        values: of a vector; None for a matrix.
    """

    def __init__(self, name: str, tensor: Tensor) -> None:
        self.name = name
        self.shape = tensor.shape
        self.columns = tensor.shape[-1] if tensor.shape else 1
        self.rows = tensor.size // self.columns
        self._tensor = tensor
        self._hashes: dict[str, Hashes] = {}
        is_vector = sum(n != 1 for n in tensor.shape) < 2
        self.values: Rows | None = np.asarray(tensor.read()).reshape(-1) if is_vector else None
        self.first: Rows = self.read(0, 1)[0] if self.values is None else self.values

    def hashes(self, dtype: str) -> Hashes:
        """One for each row cast to ``dtype``."""
        if dtype not in self._hashes:
            self._hashes[dtype] = np.concatenate([of_rows(CASTS[dtype](block)) for block in self.blocks()])
        return self._hashes[dtype]

    def blocks(self) -> Iterator[Rows]:
        """Consecutive rows in fp32, as many as fit into memory comfortably."""
        step = max(1, BLOCK // self.columns)
        for start in range(0, self.rows, step):
            yield self.read(start, min(start + step, self.rows))

    def read(self, start: int, stop: int) -> Rows:
        """Rows ``[start, stop)`` in fp32."""
        inner = self.rows // self.shape[0]  # rows of the matrix in one of the tensor's
        first, last = start // inner, -(-stop // inner)
        values = self._tensor.rows(first, last).reshape(-1, self.columns)
        return values[start - first * inner : stop - first * inner]


class Index:
    """Looks rows of a given length up, in one dtype, by their hash."""

    def __init__(self, found: Iterable[Source], dtype: str, columns: int) -> None:
        self.dtype = dtype if dtype in CASTS else "fp32"
        self.matrices = [source for source in found if source.values is None and source.columns == columns]
        self._firsts: dict[bytes, list[Source]] = {}
        for source in self.matrices:
            self._firsts.setdefault(self.cast(source.first).tobytes(), []).append(source)

    def cast(self, rows: Rows) -> Rows:
        """Rows of the checkpoint in the dtype of the package, widened again."""
        return CASTS[self.dtype](rows)

    def starting(self, first: Rows) -> list[Source]:
        """Tensors whose first row is this one."""
        return self._firsts.get(first.tobytes(), [])

    def of(self, source: Source) -> Hashes:
        """Hashes of a source's rows in this index's dtype."""
        return source.hashes(self.dtype)

    def owners(self, hashes: Hashes) -> tuple[NDArray[np.bool_], list[Source]]:
        """Which rows are found in any tensor, and in which, the most frequent first."""
        keys, owner = self._sorted
        if not len(keys):
            return np.zeros(len(hashes), bool), []
        at = np.minimum(np.searchsorted(keys, hashes), len(keys) - 1)
        found = keys[at] == hashes
        counts = np.bincount(owner[at[found]], minlength=len(self.matrices))
        return found, [self.matrices[i] for i in np.argsort(-counts, kind="stable") if counts[i]]

    @cached_property
    def _sorted(self) -> tuple[Hashes, NDArray[np.intp]]:
        each = [self.of(source) for source in self.matrices]
        keys = np.concatenate(each) if each else np.empty(0, np.uint64)
        owner = np.repeat(np.arange(len(each)), [len(h) for h in each])
        order = np.argsort(keys, kind="stable")
        return keys[order], owner[order]
