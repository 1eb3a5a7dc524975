"""What every runtime is asked for: logits, one call after another."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


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
    """

    runtime: str
    version: str

    def forward(
        self, ids: NDArray[np.int64], state: State | None = None, mask: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.float32], State]:
        """Logits of every new token.

        Args:
            ids: ``[batch, new]``.
            state: what the call before returned; None starts afresh.
            mask: ``[batch, past + new]``, 1 for a real token, 0 for padding; None if there is no padding.

        Returns:
            Logits ``[batch, new, vocab]`` in fp32, and the state for the next call.

        Raises:
            Invalid: the package cannot be run that way; the reason is in the fact.
        """
        ...
