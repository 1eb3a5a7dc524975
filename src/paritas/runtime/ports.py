"""What a decoder's graph takes and gives, found in the graph itself, whoever wrote it."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from paritas.errors import Invalid
from paritas.runtime.proto import load
from paritas.runtime.widths import head_dim

FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
FLOATS_OR_UNSAID = (*FLOATS, onnx.TensorProto.UNDEFINED)  # exporters may leave out the types of outputs
INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)


@dataclass(frozen=True)
class Cache:
    """The keys and values of one layer: ``[batch, kv_heads, past, head_dim]`` each.

    Attributes:
        layer: the number in the names; layers that own no cache are absent.
        past_key, past_value: inputs of the graph.
        present_key, present_value: outputs of the graph.
    """

    layer: int
    past_key: str
    past_value: str
    present_key: str
    present_value: str
    kv_heads: int
    head_dim: int
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Ports:
    """Names of a decoder's inputs and outputs.

    Attributes:
        input_ids: ``[batch, new]``.
        attention_mask: ``[batch, past + new]``, or None.
        position_ids: ``[batch, new]``, or None.
        logits: ``[batch, new, vocab]``.
        caches: one for each layer that owns a cache, by layer.
        vocab: width of the logits; None if the graph does not say.
    """

    input_ids: str
    attention_mask: str | None
    position_ids: str | None
    logits: str
    caches: tuple[Cache, ...]
    vocab: int | None


@dataclass(frozen=True)
class _Port:
    """An input or output of the graph; ``dims`` has None where the size is not fixed."""

    name: str
    dtype: int
    dims: tuple[int | None, ...]


@dataclass(frozen=True)
class _Slot:
    """Which half of which layer's cache a name speaks of."""

    layer: int
    half: str


def read_ports(model: Path) -> Ports:
    """The ports of the graph ``model``; its weights are not opened.

    Raises:
        ParitasError: ``package-model-broken``.
        Invalid: the graph is no decoder that can be fed from token ids: ``graph-input-unknown``,
            ``graph-no-input-ids``, ``graph-no-logits``, ``graph-cache-unpaired``, ``graph-cache-layout``.
    """
    graph = load(model).graph
    stored = {tensor.name for tensor in graph.initializer}  # an input with a default need not be fed
    inputs = [_with_width(_port(value), graph) for value in graph.input if value.name not in stored]
    outputs = [_port(value) for value in graph.output]
    caches = _caches(inputs, outputs, model)
    fed = {name for cache in caches for name in (cache.past_key, cache.past_value)}
    ids, mask, positions = _token_inputs([port for port in inputs if port.name not in fed], model)
    given = {name for cache in caches for name in (cache.present_key, cache.present_value)}
    logits = _logits([port for port in outputs if port.name not in given], model)
    vocab = logits.dims[-1] if logits.dims else None
    return Ports(ids, mask, positions, logits.name, caches, vocab)


def _port(value: onnx.ValueInfoProto) -> _Port:
    tensor = value.type.tensor_type
    dims = tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)
    return _Port(value.name, tensor.elem_type, dims)


def _with_width(port: _Port, graph: onnx.GraphProto) -> _Port:
    if len(port.dims) != 4 or port.dims[3] is not None:
        return port
    return replace(port, dims=(*port.dims[:3], head_dim(graph, port.name)))


def _token_inputs(ports: Sequence[_Port], model: Path) -> tuple[str, str | None, str | None]:
    """Tell ids, mask and positions apart. All are integers ``[batch, length]``: only their names can tell."""
    roles: dict[str, list[_Port]] = {"ids": [], "mask": [], "position": []}
    for port in ports:
        if port.dtype not in INTEGERS or len(port.dims) != 2:
            raise _invalid(
                "graph-input-unknown",
                f"input {port.name!r} ({_type(port)}) is neither ids, mask, positions nor a layer's cache",
                model,
            )
        role = "mask" if "mask" in port.name else "position" if "position" in port.name else "ids"
        roles[role].append(port)
    for role, found in roles.items():
        if len(found) > 1:
            names = ", ".join(port.name for port in found)
            raise _invalid("graph-input-unknown", f"several inputs could be the {role}: {names}", model)
    if not roles["ids"]:
        raise _invalid("graph-no-input-ids", "no input takes token ids [batch, length]", model)
    names = {role: found[0].name if found else None for role, found in roles.items()}
    return roles["ids"][0].name, names["mask"], names["position"]


def _logits(ports: Sequence[_Port], model: Path) -> _Port:
    """The output called logits, or the only one that could be."""
    could = [port for port in ports if port.dtype in FLOATS_OR_UNSAID and len(port.dims) in (0, 3)]
    named = [port for port in could if "logits" in port.name]
    found = named or could
    if len(found) != 1:
        names = ", ".join(port.name for port in ports) or "none"
        raise _invalid("graph-no-logits", f"no single output is logits [batch, length, vocab]; outputs: {names}", model)
    return found[0]


def _caches(inputs: Sequence[_Port], outputs: Sequence[_Port], model: Path) -> tuple[Cache, ...]:
    past = _slots([port for port in inputs if port.dtype in FLOATS and len(port.dims) == 4], model)
    # Shapes of outputs may be left out too: a present is known by the slot that its name gives.
    present = _slots(
        [port for port in outputs if port.dtype in FLOATS_OR_UNSAID and len(port.dims) in (0, 4)],
        model,
        set(past),
    )
    lost = [port.name for slot, port in past.items() if slot not in present]
    lost += [f"half of layer {slot.layer}" for slot in past if _Slot(slot.layer, _other(slot.half)) not in past]
    if lost:
        raise _invalid("graph-cache-unpaired", f"no partner for: {', '.join(lost)}", model)
    layers = sorted({slot.layer for slot in past})
    return tuple(_cache(layer, past, present, model) for layer in layers)


def _cache(layer: int, past: dict[_Slot, _Port], present: dict[_Slot, _Port], model: Path) -> Cache:
    key, value = past[_Slot(layer, "key")], past[_Slot(layer, "value")]
    for port in (key, value):
        _, heads, length, width = port.dims
        if heads is None or width is None or length is not None:
            why = f"{port.name} is {_type(port)}, not [batch, kv_heads fixed, past free, head_dim fixed]"
            if length is not None:
                why += "; caches of a fixed length are not run yet"
            raise _invalid("graph-cache-layout", why, model)
    if key.dims[1:] != value.dims[1:] or key.dtype != value.dtype:
        why = f"layer {layer}: keys are {_type(key)}, values are {_type(value)}"
        raise _invalid("graph-cache-layout", why, model)
    heads, width = key.dims[1], key.dims[3]
    assert heads is not None
    assert width is not None
    given = present[_Slot(layer, "key")].name, present[_Slot(layer, "value")].name
    dtype = onnx.helper.tensor_dtype_to_np_dtype(key.dtype)
    return Cache(layer, key.name, value.name, *given, kv_heads=heads, head_dim=width, dtype=dtype)


def _slots(ports: Sequence[_Port], model: Path, known: set[_Slot] | None = None) -> dict[_Slot, _Port]:
    """Ports by slot; with ``known``, ports that fill none of those are left out (taps, cross attention)."""
    pairs = [(slot, port) for port in ports if (slot := _slot(port.name)) and (known is None or slot in known)]
    twice = [slot for slot, count in Counter(slot for slot, _ in pairs).items() if count > 1]
    if twice:
        names = ", ".join(port.name for slot, port in pairs if slot in twice)
        raise _invalid("graph-cache-unpaired", f"several tensors for one half of a layer's cache: {names}", model)
    return dict(pairs)


def _slot(name: str) -> _Slot | None:
    """``past_key_values.3.key``, ``past_key_3``, ``present.3.k``, ``key_cache_3`` -> layer 3, key."""
    rest = re.sub(r"(past|present)_key_values?", "", name.lower())
    words = re.findall(r"[a-z]+|\d+", rest)
    numbers = [int(word) for word in words if word.isdigit()]
    halves = {"key" if word[0] == "k" else "value" for word in words if word in _HALF}
    if len(numbers) != 1 or len(halves) != 1:
        return None
    return _Slot(numbers[0], halves.pop())


_HALF = frozenset({"k", "key", "keys", "v", "value", "values"})


def _other(half: str) -> str:
    return "value" if half == "key" else "key"


def _type(port: _Port) -> str:
    dims = ", ".join("?" if dim is None else str(dim) for dim in port.dims)
    return f"{onnx.TensorProto.DataType.Name(port.dtype).lower()}[{dims}]"


def _invalid(code: str, fact: str, model: Path) -> Invalid:
    return Invalid(
        code,
        fact,
        place=str(model),
        hint="`paritas inspect` shows the inputs and outputs; run a graph of a decoder alone.",
    )
