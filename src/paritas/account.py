"""Accounting: every tensor of the checkpoint is used, or dropped with a reason; nothing is lost in silence."""

import fnmatch
from collections.abc import Mapping, Sequence

import numpy as np

from paritas.checkpoint import Tensor
from paritas.errors import ParitasError
from paritas.spec import Decoder
from paritas.weights import Weight


def renamed(tensors: Mapping[str, Tensor], renames: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
    """The tensors under the text model's own names."""
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for old, new in renames:
            if name.startswith(old):
                result[new + name.removeprefix(old)] = tensor
                break
        else:
            result[name] = tensor
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
        spec: whether the head is tied.
        rules: (pattern, reason), the family's and the person's.

    Raises:
        ParitasError: ``tensor-unused`` if no rule gives a reason; ``tied-head-differs``.
    """
    used = {source for weight in weights.values() for source in weight.sources}
    reasons: dict[str, str] = {}
    unexplained: list[str] = []
    for name, tensor in tensors.items():
        if tensor.name in used:
            continue
        rule = next((reason for pattern, reason in rules if fnmatch.fnmatchcase(name, pattern)), None)
        if name == "lm_head.weight" and spec.tied_head:
            _check_tied(tensors["model.embed_tokens.weight"], tensor)
            rule = "equal to the embedding, which the head is tied to"
        if rule is None:
            unexplained.append(tensor.name)
        else:
            reasons[tensor.name] = rule
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


def _check_tied(table: Tensor, head: Tensor) -> None:
    same = table.shape == head.shape and all(
        np.array_equal(table.rows(i, min(i + 4096, len_)), head.rows(i, min(i + 4096, len_)))
        for len_ in (table.shape[0],)
        for i in range(0, len_, 4096)
    )
    if not same:
        raise ParitasError(
            "tied-head-differs",
            f"tie_word_embeddings is true, but {head.name} is not equal to {table.name}",
            place=head.place,
            hint="Set tie_word_embeddings to false if the checkpoint has a head of its own, or remove the stale tensor.",
        )
