"""Puts one probe to one runtime, and gives back logits that can be laid beside the reference's."""

import numpy as np
from numpy.typing import NDArray

from paritas.runtime.decoder import Decoder
from paritas.verify.probes import Manner, Probe, Sequence

Answer = NDArray[np.float32]


def ask(decoder: Decoder, probe: Probe, sequences: tuple[Sequence, ...]) -> tuple[Answer, ...]:
    """Logits ``[positions, vocab]`` for each of the sequences, padding cut off.

    The changed last token gives two answers: the sequence as it is, and changed, both without the last
        position.

    Raises:
        Invalid: the package cannot be asked that.
    """
    if probe.manner is Manner.ONE_PASS:
        return tuple(one_pass(decoder, sequence.ids) for sequence in sequences)
    if probe.manner is Manner.STEPS:
        return tuple(steps(decoder, sequence) for sequence in sequences)
    if probe.manner is Manner.PADDED_BATCH:
        return padded_batch(decoder, sequences)
    return changed_last_token(decoder, sequences[0])


def one_pass(decoder: Decoder, ids: tuple[int, ...]) -> Answer:
    """The whole sequence in one call."""
    logits, _ = decoder.forward(np.array([ids], np.int64))
    return logits[0]


def steps(decoder: Decoder, sequence: Sequence) -> Answer:
    """The prefill in one call, then a token a call, as far as the sequence is decoded."""
    ids = np.array([sequence.ids[: sequence.stop]], np.int64)
    logits, state = decoder.forward(ids[:, : sequence.prefill])
    rows = [logits[0]]
    for position in range(sequence.prefill, sequence.stop):
        logits, state = decoder.forward(ids[:, position : position + 1], state)
        rows.append(logits[0])
    return np.concatenate(rows)


def padded_batch(decoder: Decoder, rows: tuple[Sequence, ...]) -> tuple[Answer, ...]:
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


def changed_last_token(decoder: Decoder, sequence: Sequence) -> tuple[Answer, Answer]:
    """The logits before the last token, as it is and with another one in its place."""
    last = sequence.ids[-1]
    other = (*sequence.ids[:-1], last - 1 if last else 1)
    return one_pass(decoder, sequence.ids)[:-1], one_pass(decoder, other)[:-1]
