"""Puts one probe to one runtime, and gives back logits that can be laid beside the reference's."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.errors import Invalid
from paritas.runtime.decoder import Decoder
from paritas.runtime.session import RawSession, RawState
from paritas.verify.probes import Manner, Probe, Sequence, changed_positions, chunks

Answer = NDArray[np.float32]


def ask(decoder: Decoder, probe: Probe, sequences: tuple[Sequence, ...]) -> tuple[Answer, ...]:
    """Logits ``[positions, vocab]`` for each of the sequences, padding cut off.

    Changed tokens give the sequence as it is, and then what stands before each token that was changed.

    Raises:
        Invalid: the package cannot be asked that.
    """
    match probe.manner:
        case Manner.STEPS:
            return tuple(steps(decoder, sequence) for sequence in sequences)
        case Manner.CHUNKS:
            return tuple(in_chunks(decoder, sequence.ids) for sequence in sequences)
        case Manner.PADDED_LEFT:
            return padded_left(decoder, sequences)
        case Manner.PADDED_RIGHT:
            return padded_right(decoder, sequences)
        case Manner.CHANGED_TOKENS:
            return changed_tokens(decoder, sequences[0])
        case _:
            return tuple(one_pass(decoder, sequence.ids) for sequence in sequences)


def one_pass(decoder: Decoder, ids: tuple[int, ...]) -> Answer:
    """The whole sequence in one call."""
    logits, _ = decoder.forward(np.array([ids], np.int64))
    return logits[0]


def steps(decoder: Decoder, sequence: Sequence) -> Answer:
    """The prefill in one call, then a token a call, as far as the sequence is decoded."""
    return _in_parts(decoder, sequence.ids, [sequence.prefill, *[1] * (sequence.stop - sequence.prefill)])


def in_chunks(decoder: Decoder, ids: tuple[int, ...]) -> Answer:
    """The whole sequence in a few calls of several tokens."""
    return _in_parts(decoder, ids, chunks(len(ids)))


def _in_parts(decoder: Decoder, ids: tuple[int, ...], sizes: "list[int] | tuple[int, ...]") -> Answer:
    row, start, state = np.array([ids], np.int64), 0, None
    parts: list[Answer] = []
    for size in sizes:
        logits, state = decoder.forward(row[:, start : start + size], state)
        parts.append(logits[0])
        start += size
    return np.concatenate(parts)


def padded_left(decoder: Decoder, rows: tuple[Sequence, ...]) -> tuple[Answer, ...]:
    """The rows as one batch, padded on the left: all but four tokens at once, then a step each."""
    width = max(len(row.ids) for row in rows)
    ids, mask = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width), np.int64)
    for index, row in enumerate(rows):
        ids[index, width - len(row.ids) :] = row.ids
        mask[index, width - len(row.ids) :] = 1
    prefill = max(1, width - 4)
    logits, state = decoder.forward(ids[:, :prefill], None, mask[:, :prefill])
    parts = [logits]
    for position in range(prefill, width):
        logits, state = decoder.forward(ids[:, position : position + 1], state, mask[:, : position + 1])
        parts.append(logits)
    whole = np.concatenate(parts, axis=1)
    return tuple(whole[index, width - len(row.ids) :] for index, row in enumerate(rows))


def padded_right(decoder: Decoder, rows: tuple[Sequence, ...]) -> tuple[Answer, ...]:
    """The rows as one batch, padded on the right, in one call: what follows padding is no sequence any more."""
    width = max(len(row.ids) for row in rows)
    ids, mask = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width), np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)], mask[index, : len(row.ids)] = row.ids, 1
    logits, _ = decoder.forward(ids, None, mask)
    return tuple(logits[index, : len(row.ids)] for index, row in enumerate(rows))


def changed_tokens(decoder: Decoder, sequence: Sequence) -> tuple[Answer, ...]:
    """The logits as they are, and those before each token that is changed."""
    answers = [one_pass(decoder, sequence.ids)]
    for position in changed_positions(len(sequence.ids)):
        token = sequence.ids[position]
        other = (*sequence.ids[:position], token - 1 if token else 1, *sequence.ids[position + 1 :])
        answers.append(one_pass(decoder, other)[:position])
    return tuple(answers)


def kept(decoder: Decoder, ids: tuple[int, ...], shapes: tuple[tuple[int, int, int], ...]) -> tuple[Answer, ...]:
    """Keys and values ``[kv_heads, tokens, head_dim]`` after a prefill, in turn, the last ``tokens`` of each.

    Then the states of convolutions, ``[1, tokens, channels]``.

    Args:
        decoder: the package.
        ids: what is fed.
        shapes: of the reference's.

    Raises:
        Invalid: ``cache-elsewhere``: the runtime does not show them, or not in this layout.
    """
    _, state = decoder.forward(np.array([ids], np.int64))
    tensors: tuple[Any, ...] = getattr(state, "caches", ())
    if not tensors:
        raise Invalid("cache-elsewhere", f"{decoder.runtime} does not show the package's caches")
    if len(tensors) != len(shapes):
        raise _elsewhere(f"{len(tensors)} tensors beside transformers' {len(shapes)}")
    for tensor in tensors:
        if (kind := tensor.data_type()) not in ("tensor(float)", "tensor(float16)"):
            raise _elsewhere(f"{kind} has no counterpart in numpy")
    # What lies in a cache behind the tokens that it holds is nobody's.
    held: tuple[Answer, ...] = (
        decoder.held(state) if isinstance(decoder, RawSession) and isinstance(state, RawState) else ()
    )
    arrays = (*held, *(np.asarray(tensor.numpy(), np.float32) for tensor in tensors[len(held) :]))
    found: list[Answer] = []
    for array, (heads, tokens, width) in zip(arrays, shapes, strict=True):
        if array.ndim == 3:  # [batch, channels, tokens]
            array = array.swapaxes(1, 2)[:, np.newaxis]
        if array.ndim == 4 and 0 < array.shape[1] < heads and heads % array.shape[1] == 0:
            array = array.repeat(heads // array.shape[1], axis=1)  # Falcon's class keeps one for each query
        if array.ndim != 4 or array.shape[:2] != (1, heads) or array.shape[3] != width:
            raise _elsewhere(f"{list(array.shape)} beside transformers' {[1, heads, tokens, width]}")
        if not tokens <= array.shape[2] <= len(ids):
            raise _elsewhere(f"room for {array.shape[2]} tokens beside transformers' {tokens}")
        found.append(array[0, :, array.shape[2] - tokens :])
    return tuple(found)


def _elsewhere(what: str) -> Invalid:
    return Invalid("cache-elsewhere", f"the package's caches cannot be laid beside transformers': {what}")
