"""Accounting: every tensor of the checkpoint is used, or dropped with a reason; nothing is lost in silence."""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint import Tensor
from paritas.errors import ParitasError
from paritas.families import text_name, without_keys
from paritas.spec import Decoder
from paritas.weights import Weight

_ROWS = 4096  # of two tables in memory at a time


def renamed(tensors: Mapping[str, Tensor], renames: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
    """The tensors under the text model's own names.

    Raises:
        ParitasError: ``tensor-duplicated`` if two tensors come to the same name.
    """
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        own = text_name(name, renames)
        if own in result:
            raise ParitasError(
                "tensor-duplicated",
                f"{result[own].name} and {name} are both the text model's {own}",
                place=tensor.place,
                hint="Fetch the checkpoint again: which of the two is meant cannot be told.",
            )
        result[own] = tensor
    return result


def dropped(
    tensors: Mapping[str, Tensor],
    weights: Mapping[str, Weight],
    spec: Decoder,
    rules: Sequence[tuple[str, str]],
) -> dict[str, str]:
    """Name -> reason of every tensor that the graph does not use.

    Args:
        tensors: under the text model's names.
        weights: of the graph.
        spec: whether the head is tied, and which layers attend to another one's keys.
        rules: (pattern, reason), the family's and the person's.

    Raises:
        ParitasError: ``tensor-unused`` if no rule gives a reason; ``tied-head-differs``; and what a tensor raises whose
            stored type cannot be read.
    """
    rules = [*rules, *without_keys(spec)]
    used = {source for weight in weights.values() for source in weight.sources}
    reasons: dict[str, str] = {}
    unexplained: list[str] = []
    for name, tensor in tensors.items():
        if tensor.name in used:
            tensor.rows(0, 0)  # reads nothing, but refuses a stored type that cannot be widened
        elif name == "lm_head.weight" and spec.tied_head:
            _check_tied(tensors["model.embed_tokens.weight"], tensor)
            reasons[tensor.name] = "equal to the embedding, which the head is tied to"
        elif (reason := _reason((name, tensor.name), rules)) is not None:
            reasons[tensor.name] = reason
        else:
            unexplained.append(tensor.name)
    if unexplained:
        raise ParitasError(
            "tensor-unused",
            f"the model computes with no tensor of the name {', '.join(sorted(unexplained)[:3])}"
            + (f" (and {len(unexplained) - 3} more)" if len(unexplained) > 3 else ""),
            place=tensors_place(tensors, unexplained[0]),
            hint="A tensor that is not understood may change the computation. If you know that it does not: "
            f"--drop '{sorted(unexplained)[0]}' (a pattern like 'mtp.*' works too).",
        )
    return reasons


def tensors_place(tensors: Mapping[str, Tensor], name: str) -> str:
    """The file that holds the tensor whose own name is ``name``."""
    return next((tensor.place for tensor in tensors.values() if tensor.name == name), "")


def _reason(names: Sequence[str], rules: Sequence[tuple[str, str]]) -> str | None:
    """The reason of the first rule that knows the tensor, by the text model's name or by its own."""
    return next(
        (reason for pattern, reason in rules if any(fnmatch.fnmatchcase(name, pattern) for name in names)), None
    )


def _check_tied(table: Tensor, head: Tensor) -> None:
    if table.shape != head.shape or not all(np.array_equal(a, b) for a, b in _blocks(table, head)):
        raise ParitasError(
            "tied-head-differs",
            f"tie_word_embeddings is true, but {head.name} is not equal to {table.name}",
            place=head.place,
            hint="Set tie_word_embeddings to false if the checkpoint has a head of its own, or remove the stale "
            "tensor. Only who trained the model can tell which.",
        )


def _blocks(one: Tensor, other: Tensor) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    for start in range(0, one.shape[0], _ROWS):
        stop = min(start + _ROWS, one.shape[0])
        yield one.rows(start, stop), other.rows(start, stop)
