"""Which layers' hidden states a graph gives beside its logits."""

from collections.abc import Sequence

from paritas.errors import ParitasError, Unsupported
from paritas.spec import Decoder

LAST = "last"


def layers(spec: Decoder, wanted: Sequence[str]) -> tuple[int, ...]:
    """Numbers of layers, each once, for words like ``3`` and ``last``.

    Raises:
        ParitasError: ``hidden-states-unknown`` for a word that names no layer.
        Unsupported: ``hidden-states-several`` for a layer behind which there are several streams.
    """
    depth = len(spec.layers)
    numbers = [_number(word, depth) for word in wanted]
    if spec.altup is not None and any(number < depth - 1 for number in numbers):
        raise Unsupported(
            "hidden-states-several",
            f"behind a layer this model has {spec.altup.streams} residual streams, and no one hidden state",
            hint="--hidden-states last: behind the last norm there is one.",
        )
    return tuple(sorted(set(numbers)))


def _number(word: str, depth: int) -> int:
    if word == LAST:
        return depth - 1
    if not word.isascii() or not word.isdigit() or int(word) >= depth:
        raise ParitasError(
            "hidden-states-unknown",
            f"the model has no hidden state {word!r}: its layers are 0 to {depth - 1}",
            hint=f"--hidden-states {depth - 1}, or --hidden-states last, which is the same: behind the last norm.",
        )
    return int(word)
