"""Numbers outside of the attention against the spec: epsilons, embedding scale, activation, softcap of the logits."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
import onnx

from paritas.audit.finding import Finding, layer_of, layers
from paritas.audit.identity import Identity, Provenance
from paritas.audit.sites import NORMS, PROJECTIONS
from paritas.audit.view import PASSES, View, attributes, operand
from paritas.audit.weights import swapped
from paritas.spec import Activation, Decoder

_EMBEDDING = "model.embed_tokens.weight"
_CLOSE = 1e-6  # relative


def number_findings(view: View, identity: Identity, spec: Decoder, logits: str) -> Iterator[Finding]:
    """Everything that hangs on a weight that is known by value."""
    made = made_of(identity)
    yield from _norms(view, made, spec)
    yield from _embedding(view, made, spec)
    yield from _mlps(view, made, spec)
    yield from _softcap(view, spec, logits)


def made_of(identity: Identity) -> Mapping[str, Provenance]:
    """Initializer -> where it comes from, of those that come from one place or several."""
    return {record.name: record for record in identity.initializers if record.tensors}


# Norms.


def _norms(view: View, made: Mapping[str, Provenance], spec: Decoder) -> Iterator[Finding]:
    epsilons: dict[tuple[float, float], list[str]] = defaultdict(list)
    centred: list[str] = []
    for node, tensor in norm_nodes(view, made):
        wanted = _epsilon(tensor, spec)
        got = attributes(node).get("epsilon", 1e-5)
        if wanted is not None and not math.isclose(got, wanted, rel_tol=1e-5):
            epsilons[got, wanted].append(tensor)
        if node.op_type in ("LayerNormalization", "SkipLayerNormalization"):
            centred.append(tensor)
    for (got, wanted), tensors in epsilons.items():
        yield Finding(
            "norm-epsilon-wrong",
            "error",
            _where(tensors),
            f"{len(tensors)} norms have epsilon {got:.6g}, the checkpoint says {wanted:.6g}",
            f"Set epsilon to {wanted:g}.",
        )
    if centred:
        yield Finding(
            "norm-kind-wrong",
            "error",
            _where(centred),
            f"{len(centred)} norms subtract the mean (LayerNorm), the checkpoint's do not (RMSNorm)",
            "Write RMSNormalization or SimplifiedLayerNormalization.",
        )


def norm_nodes(view: View, made: Mapping[str, Provenance]) -> Iterator[tuple[onnx.NodeProto, str]]:
    """Every fused norm, with the checkpoint tensor that is its weight."""
    for node in view.nodes:
        if node.op_type in NORMS:
            names = [name for name in node.input[1:] if name in made and len(view.tensors[name].shape) == 1]
            if names:
                yield node, made[names[0]].tensors[0]


def _epsilon(tensor: str, spec: Decoder) -> float | None:
    layer = layer_of(tensor)
    if layer is None or layer >= len(spec.layers):
        return spec.norm.eps
    of_heads = spec.layers[layer].attention.qk_norm
    return of_heads.eps if of_heads and "self_attn." in tensor else spec.layers[layer].norm.eps


def _where(tensors: list[str]) -> str:
    numbers = [n for tensor in tensors if (n := layer_of(tensor)) is not None]
    others = [tensor for tensor in tensors if layer_of(tensor) is None]
    return "; ".join([*([layers(numbers)] if numbers else []), *dict.fromkeys(others)])


# Embedding.


def _embedding(view: View, made: Mapping[str, Provenance], spec: Decoder) -> Iterator[Finding]:
    for node in view.nodes:
        if node.op_type not in ("Gather", "GatherBlockQuantized"):
            continue
        stored = view.initializer(node.input[0])
        record = made.get(stored.name) if stored else None
        if record is None or _EMBEDDING not in (*record.tensors, *(a for p in record.parts for a in p.also)):
            continue
        folded = record.near[0].factor if record.near and not record.quantized else 1.0
        got = folded * _following_scale(view, node.output[0])
        short = record.dtype in ("fp16", "bf16")
        close = 2**-8 if short else _CLOSE
        if not math.isclose(got, spec.embed_scale, rel_tol=close):
            yield Finding(
                "embedding-scale-wrong",
                "error",
                node.name or node.output[0],
                f"the embedding is multiplied by {got:.9g}, the checkpoint says {spec.embed_scale:.9g} "
                f"(off by {abs(got / spec.embed_scale - 1):.1e})",
                f"Write the scale in fp32 from its formula: {np.float32(spec.embed_scale):.9g}.",
            )


def _following_scale(view: View, name: str) -> float:
    for _ in range(4):
        takers = view.takers.get(name, [])
        for node, _ in takers:
            if node.op_type in ("Mul", "Div") and (given := operand(view, node)):
                return given[1] if node.op_type == "Mul" else 1 / given[1]
        through = [node for node, _ in takers if node.op_type in PASSES]
        if len(through) != 1:
            return 1.0
        name = through[0].output[0]
    return 1.0


# MLP.


def _mlps(view: View, made: Mapping[str, Provenance], spec: Decoder) -> Iterator[Finding]:
    wrong: dict[tuple[str, str], list[int]] = defaultdict(list)
    for node in view.nodes:
        stored = view.initializer(node.input[1]) if node.op_type in PROJECTIONS else None
        record = made.get(stored.name) if stored else None
        if stored is None or record is None:
            continue
        for tensor, output in branches(view, node, record):
            layer = layer_of(tensor)
            activation = activation_after(view, output) if ".mlp." in tensor else None
            if activation is None or layer is None or layer >= len(spec.layers):
                continue
            if tensor.endswith("up_proj.weight"):
                yield swapped(stored.name, f"the activation is applied to {tensor}, it belongs to gate_proj")
            elif tensor.endswith("gate_proj.weight") and activation != (want := spec.layers[layer].mlp.activation):
                wrong[activation, want].append(layer)
    for (got, want), numbers in wrong.items():
        yield Finding(
            "activation-wrong",
            "error",
            layers(numbers),
            f"{layers(numbers)}: the MLP's activation is {got}, the checkpoint says {want}",
            f"Write {want}.",
        )


def branches(view: View, node: onnx.NodeProto, record: Provenance) -> Iterator[tuple[str, str]]:
    """(tensor, value) of a projection; of a packed one, after the Split, one each."""
    if len(record.tensors) == 1:
        yield record.tensors[0], node.output[0]
        return
    name = node.output[0]
    for _ in range(3):
        for taker, _ in view.takers.get(name, []):
            if taker.op_type == "Split" and len(taker.output) == len(record.tensors):
                yield from zip(record.tensors, taker.output, strict=True)
                return
        through = [taker for taker, _ in view.takers.get(name, []) if taker.op_type in (*PASSES, "Add")]
        if len(through) != 1:
            return
        name = through[0].output[0]


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


# Logits.


def _softcap(view: View, spec: Decoder, logits: str) -> Iterator[Finding]:
    got = _cap(view, logits)
    if got == spec.softcap or (got and spec.softcap and math.isclose(got, spec.softcap, rel_tol=_CLOSE)):
        return
    yield Finding(
        "logit-softcap-wrong",
        "error",
        logits,
        f"logits are {f'capped at {got:g}' if got else 'not capped'}, "
        f"the checkpoint {f'caps them at {spec.softcap:g}' if spec.softcap else 'caps none'}",
        "Write cap * tanh(logits / cap) with the checkpoint's final_logit_softcapping, or nothing.",
    )


def _cap(view: View, name: str) -> float | None:
    for _ in range(4):
        node = view.maker.get(name)
        if node is None:
            return None
        if node.op_type == "Mul" and (given := operand(view, node)):
            inner = view.maker.get(given[0])
            return given[1] if inner is not None and inner.op_type == "Tanh" else None
        if node.op_type not in PASSES:
            return None
        name = node.input[0]
    return None
