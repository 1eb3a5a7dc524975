"""What a checkpoint or a package is, as plain values: one row a layer, one row a cache. Reads no weight."""

from collections import Counter
from pathlib import Path
from typing import Any

from paritas.checkpoint.base import Checkpoint
from paritas.checkpoint.opening import text_only
from paritas.config import Config
from paritas.families import family_of
from paritas.runtime.held import read_held
from paritas.runtime.package import Package
from paritas.runtime.ports import read_ports
from paritas.runtime.proto import operators
from paritas.runtime.stored import tensors
from paritas.spec import Activation, Attention, Decoder, Experts, Layer, Mlp, MlpAndExperts, Proportional, Rope
from paritas.targets import TARGETS

_SELDOM = {"keys_of": "keys of", "sparsity": "sparse"}
"""What is shown of layers where one has it."""


def describe_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """The spec of a checkpoint (of its text half, if it has more): whole-model facts, and ``layers``, a row a layer."""
    checkpoint = text_only(checkpoint)
    config = Config(checkpoint.config, checkpoint.config_place)
    spec = family_of(config).read(config)
    stored = sorted({tensor.dtype for tensor in checkpoint.tensors.values()})
    return {
        "model": checkpoint.name,
        "model_type": checkpoint.config["model_type"],
        "parameters": sum(tensor.size for tensor in checkpoint.tensors.values()),
        "stored": stored,
        "vocab": spec.vocab,
        "hidden": spec.hidden,
        "context": spec.context,
        "head": "tied" if spec.tied_head else "untied",
        "embed_scale": spec.embed_scale,
        "softcap": spec.softcap,
        **_beside(spec),
        "layers": [_layer(index, layer) for index, layer in enumerate(spec.layers)],
    }


def describe_package(package: Package) -> dict[str, Any]:
    """A package: inputs, outputs, ``caches`` (a row a layer), bytes by type and by file, operators and their number."""
    ports = read_ports(package.model, package.head_size)
    files = sorted(path for path in package.folder.rglob("*") if path.is_file())
    return {
        "package": package.folder.resolve().name,
        "graph": package.model.name,
        "inputs": list(ports.inputs),
        "outputs": [ports.logits],
        "vocab": ports.vocab,
        "caches": [
            {
                "layer": cache.layer,
                "inputs": [cache.past_key, cache.past_value],
                "outputs": [cache.present_key, cache.present_value],
                "kv_heads": cache.kv_heads,
                "head_dim": cache.head_dim,
                "dtype": str(cache.dtype),
            }
            for cache in ports.caches
        ],
        "stored": _stored(package),
        "bytes": sum(path.stat().st_size for path in files),
        "files": {str(path.relative_to(package.folder)): path.stat().st_size for path in files},
        "operators": dict(operators(package.model).most_common()),
    }


def layer_table(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The layers of :func:`describe_checkpoint` in a form that fits a screen."""
    shown = {key: title for key, title in _SELDOM.items() if any(layer[key] is not None for layer in layers)}
    return [
        {
            "layer": layer["layer"],
            "kind": layer["kind"].removesuffix("_attention"),
            "heads/kv": f"{layer['heads']}/{layer['kv_heads']}" if layer["heads"] else "",
            "head_dim": layer["head_dim"] or "",
            "theta": layer["rope_theta"] or "",
            "factor": layer["rope_scaling"] or "",
            "window": layer["window"] or "",
            "mlp": _widths(layer),
            **{title: "" if layer[key] is None else f"{layer[key]:g}" for key, title in shown.items()},
        }
        for layer in layers
    ]


def _widths(layer: dict[str, Any]) -> int | str:
    """Of the MLP, of experts, or of both."""
    if not layer["experts"]:
        return int(layer["mlp"])
    experts = f"{layer['chosen']} of {layer['experts']} x {layer['expert_mlp']}"
    return f"{layer['mlp']} + {experts}" if layer["mlp_beside"] else experts


def cache_table(caches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The caches of :func:`describe_package` in a form that fits a screen."""
    return [
        {
            "layer": cache["layer"],
            "past": cache["inputs"][0],
            "present": cache["outputs"][0],
            "kv": cache["kv_heads"],
            "head_dim": cache["head_dim"],
            "dtype": cache["dtype"],
        }
        for cache in caches
    ]


def _stored(package: Package) -> dict[str, int]:
    """How the package stores its numbers -> bytes: ``int4 in blocks of 32, uint8 zero points, fp32 scales``, ``fp32``.

    A table that two operators take in two shapes is counted once.
    """
    held = read_held(package.proto, package.model.parent)
    every = tensors(package.proto, package.model.parent)
    words = {name: weight.format for weight in held.quantized.values() for name in weight.members}
    words |= {each.stored.name: each.stored.dtype for each in held.floats}
    counted: Counter[str] = Counter()
    seen: set[tuple[object, ...]] = set()
    for name, word in words.items():
        place = every[name].place
        if place not in seen:
            counted[word] += every[name].bytes
            seen.add(place)
    return dict(counted.most_common())


def is_package(path: Path) -> bool:
    """A folder with an ONNX graph in it, or the graph itself."""
    return path.suffix == ".onnx" or (path.is_dir() and any(path.glob("*.onnx")))


def _beside(spec: Decoder) -> dict[str, Any]:
    """What few models have: several residual streams, inputs to each layer."""
    found: dict[str, Any] = {}
    if spec.altup is not None:
        found |= {"streams": spec.altup.streams, "active_stream": spec.altup.active}
    if spec.per_layer is not None:
        found |= {"per_layer_input": spec.per_layer.width, "per_layer_vocab": spec.per_layer.vocab}
    return found


def _layer(index: int, layer: Layer) -> dict[str, Any]:
    """One row. What the layer has none of is null: the heads of a convolution, the theta of a layer without RoPE."""
    attention = layer.mixer if isinstance(layer.mixer, Attention) else None
    rope = attention.rope if attention else None
    activation, experts = layer.mlp.activation, _experts(layer)
    return {
        "layer": index,
        "kind": layer.kind,
        "heads": attention and attention.heads,
        "kv_heads": attention and attention.kv_heads,
        "head_dim": attention and attention.head_dim,
        "scale": attention and attention.scale,
        "rope_theta": rope and rope.theta,
        "rope_dim": rope and rope.dim,
        "rope_scaling": rope and _scaling(rope),
        "window": attention and attention.window,
        "softcap": attention and attention.softcap,
        "qk_norm": attention is not None and attention.qk_norm is not None,
        "keys_of": attention and attention.keys_of,
        "mlp": layer.mlp.width,
        "mlp_beside": isinstance(layer.mlp, MlpAndExperts),
        "sparsity": layer.mlp.sparsity if isinstance(layer.mlp, Mlp) else None,
        "experts": experts and experts.count,
        "chosen": experts and experts.chosen,
        "expert_mlp": experts and experts.width,
        "activation": activation.value if isinstance(activation, Activation) else str(activation),
        "on_ort": TARGETS["ort"].falls_back(layer),
    }


def _experts(layer: Layer) -> Experts | None:
    """Whether alone or beside an MLP."""
    found = layer.mlp.experts if isinstance(layer.mlp, MlpAndExperts) else layer.mlp
    return found if isinstance(found, Experts) else None


def _scaling(rope: Rope) -> str | None:
    """The kind, and the factor where there is one: ``linear 8``."""
    if rope.scaling is None:
        return None
    if isinstance(rope.scaling, Proportional):
        return f"proportional, {2 * rope.scaling.pairs} of {rope.dim}"
    factor = getattr(rope.scaling, "factor", None)
    return type(rope.scaling).__name__.lower() + ("" if factor is None else f" {factor:g}")
