"""What every runtime is asked for: logits, one call after another."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paritas.runtime.rows import ALL


class State(Protocol):
    """What a runtime keeps between two calls. Only the runtime that made it can read it."""

    @property
    def length(self) -> int:
        """Number of tokens that have been seen, padding included."""
        ...


class Decoder(Protocol):
    """A package, loaded.

    Attributes:
        runtime: ``onnxruntime`` or ``onnxruntime-genai``.
        version: the version of that runtime.
        goes_back: whether :meth:`kept` can keep a part of a call.
    """

    runtime: str
    version: str
    goes_back: bool

    def forward(
        self,
        ids: NDArray[np.int64],
        state: State | None = None,
        mask: NDArray[np.int64] | None = None,
        rows: int = ALL,
    ) -> tuple[NDArray[np.float32], State]:
        """Logits of every new token.

        Args:
            ids: ``[batch, new]``.
            state: what the call before returned; None starts afresh.
            mask: ``[batch, past + new]``, 1 for a real token, 0 for padding; None if there is no padding.
            rows: of how many last tokens logits are wanted; there may be more.

        Returns:
            Logits ``[batch, new, vocab]`` in fp32, or of the last tokens, and the state for the next call.

        Raises:
            Invalid: the package cannot be run that way; the reason is in the fact.
        """
        ...

    def kept(self, before: State | None, after: State, ids: NDArray[np.int64], count: int) -> State:
        """The state after the first ``count`` of ``ids``, as if the call had had no more.

        Args:
            before, after: what the call was given, and what it returned.
            ids: ``[batch, new]`` of that call.
            count: 1 to ``new``.

        Raises:
            Invalid: as :meth:`forward`.
        """
        ...
