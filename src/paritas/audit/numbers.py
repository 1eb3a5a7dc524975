"""Numbers at the two ends of a model: what the embedding and the logits are multiplied by, where logits are capped."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
import onnx

from paritas.audit.finding import Finding
from paritas.audit.identity import Provenance
from paritas.audit.sites import PROJECTIONS
from paritas.audit.told import Told, Unknown
from paritas.audit.view import PASSES, View, attributes, operand
from paritas.spec import Activation

_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
_CLOSE = 1e-6  # relative


def number_findings(view: View, made: Mapping[str, Provenance], told: Told, logits: str) -> Iterator[Finding]:
    """Everything that hangs on a weight that is known by value."""
    yield from _embedding(view, made, told)
    yield from _logits(view, made, told, logits)


# Embedding.


def _embedding(view: View, made: Mapping[str, Provenance], told: Told) -> Iterator[Finding]:
    for node in view.nodes:
        if isinstance(told.embed_scale, Unknown) or node.op_type not in ("Gather", "GatherBlockQuantized"):
            continue
        stored = view.initializer(node.input[0])
        record = made.get(stored.name) if stored else None
        if record is None or not any(_EMBEDDING in name for name in _names(record)):
            continue
        folded = record.near[0].factor if record.near and not record.quantized else 1.0
        got = folded * following_scale(view, node.output[0])
        short = record.dtype in ("fp16", "bf16")
        close = 2**-8 if short else _CLOSE
        if not math.isclose(got, told.embed_scale, rel_tol=close):
            yield Finding(
                "embedding-scale-wrong",
                "error",
                node.name or node.output[0],
                f"the embedding is multiplied by {got:.9g}, {told.by} says {told.embed_scale:.9g} "
                f"(off by {abs(got / told.embed_scale - 1):.1e})",
                f"Write the scale in fp32 from its formula: {np.float32(told.embed_scale):.9g}.",
            )


def _names(record: Provenance) -> Iterator[str]:
    """Tensors that an initializer is made of, or may be: those of equal values too."""
    yield from record.tensors
    yield from (other for part in record.parts for other in part.also)


def following_scale(view: View, name: str) -> float:
    """What a value is multiplied by before anything else becomes of it; 1 if by nothing."""
    for _ in range(4):
        takers = view.takers.get(name, [])
        for node, _ in takers:
            if node.op_type in ("Mul", "Div") and (given := operand(view, node)):
                return given[1] if node.op_type == "Mul" else 1 / given[1]
        through = [node for node, _ in takers if node.op_type in (*PASSES, "Slice")]
        if len(through) != 1:
            return 1.0
        name = through[0].output[0]
    return 1.0


# Logits.


def _logits(view: View, made: Mapping[str, Provenance], told: Told, logits: str) -> Iterator[Finding]:
    end = _end(view, made, logits)
    if end is None:
        return
    scale, cap, head = end
    yield from _tied(head, told)
    if not isinstance(told.softcap, Unknown) and not _same(cap, told.softcap):
        yield Finding(
            "logit-softcap-wrong",
            "error",
            logits,
            f"logits are {f'capped at {cap:g}' if cap else 'not capped'}, "
            f"{told.by} {f'caps them at {told.softcap:g}' if told.softcap else 'caps none'}",
            "Write cap * tanh(logits / cap) with the checkpoint's final_logit_softcapping, or nothing.",
        )
    if not isinstance(told.logits_scale, Unknown) and not math.isclose(scale, told.logits_scale, rel_tol=1e-3):
        yield Finding(
            "logit-scale-wrong",
            "error",
            logits,
            f"logits are multiplied by {scale:.7g}, {told.by} says {told.logits_scale:.7g}",
            f"Multiply them by {told.logits_scale:.9g}.",
        )


def _tied(head: Provenance | None, told: Told) -> Iterator[Finding]:
    """The head is the embedding table where the model ties them, and is not where it does not."""
    if head is None or isinstance(told.tied, Unknown):
        return
    of_embedding, of_head = (any(word in name for name in _names(head)) for word in (_EMBEDDING, _HEAD))
    if told.tied and of_head and not of_embedding:
        yield Finding(
            "head-not-tied",
            "error",
            head.name,
            f"the head is {head.tensors[0]}, {told.by} says the embedding table, which transformers uses",
            "Multiply by the embedding table, or write tie_word_embeddings false.",
        )
    elif not told.tied and of_embedding and not of_head:
        yield Finding(
            "head-tied",
            "error",
            head.name,
            f"the head is the embedding table, {told.by} says that it has a weight of its own",
            "Multiply by the head's own weight.",
        )


def _same(one: float | None, other: float | None) -> bool:
    return one == other or bool(one and other and math.isclose(one, other, rel_tol=1e-3))


def _end(view: View, made: Mapping[str, Provenance], name: str) -> tuple[float, float | None, Provenance | None] | None:
    """Factor and cap of what the head gives on its way to the logits, and the head; None if the way is not known."""
    factor, cap, inside = 1.0, None, False
    for _ in range(24):
        node = view.maker.get(name)
        if node is None:
            return None
        if node.op_type in ("Mul", "Div") and (given := operand(view, node)):
            factor *= given[1] if node.op_type == "Mul" else 1 / given[1]
            name = given[0]
        elif node.op_type == "Tanh" and not inside:
            cap, factor, inside, name = factor, factor, True, node.input[0]
        elif node.op_type in PROJECTIONS:
            stored = view.initializer(node.input[1])
            record = made.get(stored.name) if stored else None
            folded = record.near[0].factor if record and record.near and not record.quantized else 1.0
            return factor * folded, cap, record
        elif node.op_type in (*PASSES, "Add", "Slice", "Gather"):
            name = next((each for each in node.input if each in view.maker), node.input[0])
        else:
            return None
    return None


# Activations, where a value is followed by its nodes.


def activation_after(view: View, name: str) -> str | None:
    """The activation that a value goes into, in transformers' words; None if it goes into none."""
    for _ in range(4):
        takers = [node for node, _ in view.takers.get(name, [])]
        for node in takers:
            if (word := _word(view, node, takers)) is not None:
                return word
        through = [node for node in takers if node.op_type in (*PASSES, "Add")]
        if len(takers) != 1 or len(through) != 1:
            return None
        name = through[0].output[0]
    return None


def _word(view: View, node: onnx.NodeProto, others: list[onnx.NodeProto]) -> str | None:
    values = attributes(node)
    match node.op_type:
        case "Gelu":
            return Activation.GELU_TANH if values.get("approximate") == "tanh" else Activation.GELU
        case "FastGelu":
            return Activation.GELU_TANH
        case "BiasGelu":
            return Activation.GELU
        case "Sigmoid":
            return Activation.SILU
        case "Swish" | "Silu":
            return Activation.SILU if values.get("alpha", 1.0) == 1.0 else f"swish with {values['alpha']:g}"
        case "QuickGelu":
            alpha = values.get("alpha", 1.702)
            return Activation.SILU if alpha == 1.0 else f"quick_gelu with {alpha:.4g}"
        case "Relu":
            return Activation.RELU
        case "Div" | "Mul" if operand(view, node):
            after = {taker.op_type for taker, _ in view.takers.get(node.output[0], [])}
            return Activation.GELU if "Erf" in after else "quick_gelu" if "Sigmoid" in after else None
        case "Pow" if len(others) > 1 and view.number(node.input[1]) == 3:
            return Activation.GELU_TANH
        case _:
            return None
