"""genai_config.json against the graph beside it and the spec."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paritas.audit.attending import Attending
from paritas.audit.finding import Finding
from paritas.audit.view import View
from paritas.spec import Decoder

_FILE = "genai_config.json"


def genai_findings(
    config: Mapping[str, Any], view: View, found: Sequence[Attending], spec: Decoder | None
) -> Iterator[Finding]:
    """What ORT GenAI would be told wrongly. Parts that are no objects are passed over: the runtime refuses them."""
    model = _object(config, "model")
    decoder = _object(model, "decoder")
    yield from _types(config, model)
    yield from _ports(decoder, view)
    yield from _caches(decoder, view)
    yield from _heads(decoder, found)
    yield from _vocabulary(model, view, spec)
    yield from _lengths(config, model, spec)
    yield from _window(decoder, spec)


def _types(config: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[Finding]:
    """Values of another type than ORT GenAI reads: it refuses the whole file."""
    search = _object(config, "search")
    wrong = [f"search.{key} is null" for key, value in search.items() if value is None]
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = model.get(key, 0)
        kind = "null" if value is None else type(value).__name__
        if kind not in ("int", *(["list"] if key == "eos_token_id" else [])):
            wrong.append(f"model.{key} is {'a ' if kind != 'null' else ''}{kind}")
    if wrong:
        yield Finding(
            "genai-type-wrong",
            "error",
            _FILE,
            f"{', '.join(wrong)}: ORT GenAI wants a number, and does not load",
            "Leave keys without a value out; bos and pad are one number each.",
        )


def _object(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = values.get(key)
    return value if isinstance(value, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]


def _ports(decoder: Mapping[str, Any], view: View) -> Iterator[Finding]:
    stored = {tensor.name for tensor in view.proto.graph.initializer}
    inputs = [value.name for value in view.proto.graph.input if value.name not in stored]
    outputs = [value.name for value in view.proto.graph.output]
    for side, real in (("inputs", inputs), ("outputs", outputs)):
        told = {key: name for key, name in _object(decoder, side).items() if isinstance(name, str)}
        patterns = {key: _numbered(name) for key, name in told.items()}
        lost = [f"{key} {told[key]!r}" for key, each in patterns.items() if not any(map(each.fullmatch, real))]
        if lost:
            yield Finding(
                "genai-name-missing",
                "error",
                f"{_FILE}, model.decoder.{side}",
                f"the graph has no {', '.join(lost)}",
                "Write the names that the graph has; paritas inspect shows them.",
            )
        if side == "inputs" and told:
            unfed = [name for name in real if not any(each.fullmatch(name) for each in patterns.values())]
            if unfed:
                yield Finding(
                    "genai-input-unfed",
                    "error",
                    f"{_FILE}, model.decoder.inputs",
                    f"nothing feeds {', '.join(unfed[:3])}",
                    "Name every input of the graph.",
                )


def _numbered(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace("%d", r"(\d+)"))


def _caches(decoder: Mapping[str, Any], view: View) -> Iterator[Finding]:
    pattern = _object(decoder, "inputs").get("past_key_names")
    if not isinstance(pattern, str):
        return
    caches = [v for v in view.proto.graph.input if _numbered(pattern).fullmatch(v.name)]
    told = decoder.get("num_hidden_layers")
    hybrid = "layer_types" in decoder or "past_conv_names" in _object(decoder, "inputs")  # not every layer has a cache
    if not hybrid and caches and told != len(caches):
        yield Finding(
            "genai-layers-wrong",
            "error",
            f"{_FILE}, model.decoder.num_hidden_layers",
            f"{told} layers are told, the graph has caches of {len(caches)}",
            f"Write {len(caches)}.",
        )
    # The runtime reads both of each layer's own cache; the number in the file stands for what shapes leave open.
    shapes = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in caches]
    for key, axis in (("num_key_value_heads", 1), ("head_size", 3)):
        real = sorted({shape[axis] for shape in shapes if len(shape) == 4 and shape[axis]})
        if real and decoder.get(key) not in real:  # where layers differ, ORT GenAI takes each one's from the graph
            yield Finding(
                "genai-cache-wrong",
                "error",
                f"{_FILE}, model.decoder.{key}",
                f"{decoder.get(key)} is told, the caches of the graph have {', '.join(map(str, real))}",
                f"Write {real[0]}.",
            )


def _heads(decoder: Mapping[str, Any], found: Sequence[Attending]) -> Iterator[Finding]:
    real = {each.heads for each in found if isinstance(each.heads, int)}
    told = decoder.get("num_attention_heads")
    if real and told not in real:
        yield Finding(
            "genai-heads-wrong",
            "error",
            f"{_FILE}, model.decoder.num_attention_heads",
            f"{told} heads are told, the graph attends with {', '.join(map(str, sorted(real)))}",
            "Write the graph's number.",
        )


def _vocabulary(model: Mapping[str, Any], view: View, spec: Decoder | None) -> Iterator[Finding]:
    logits = next((v for v in view.proto.graph.output if "logits" in v.name), None)
    dims = [dim.dim_value for dim in logits.type.tensor_type.shape.dim] if logits else []
    real = (dims[-1] if dims else 0) or (spec.vocab if spec else 0)
    if real and model.get("vocab_size") != real:
        yield Finding(
            "genai-vocabulary-wrong",
            "error",
            f"{_FILE}, model.vocab_size",
            f"{model.get('vocab_size')} tokens are told, the graph gives {real}",
            f"Write {real}.",
        )


def _lengths(config: Mapping[str, Any], model: Mapping[str, Any], spec: Decoder | None) -> Iterator[Finding]:
    context, most = model.get("context_length"), _object(config, "search").get("max_length")
    if isinstance(context, int) and isinstance(most, int) and most > context:
        yield Finding(
            "genai-length-wrong",
            "error",
            f"{_FILE}, search.max_length",
            f"{most:,} is more than model.context_length, {context:,}: ORT GenAI refuses to generate",
            f"Write {context}.",
        )
    if spec and isinstance(context, int) and context > spec.reach:
        yield Finding(
            "context-beyond-model",
            "warning",
            f"{_FILE}, model.context_length",
            f"{context:,} positions are promised, the checkpoint was made for {spec.reach:,}",
            f"Write {spec.reach}.",
        )


def _window(decoder: Mapping[str, Any], spec: Decoder | None) -> Iterator[Finding]:
    window = _object(decoder, "sliding_window")
    if not window or spec is None:
        return
    wanted = [index for index, layer in enumerate(spec.layers) if getattr(layer.mixer, "window", None) is not None]
    listed = window.get("layers")
    told = listed or list(range(len(spec.layers)))
    if told != wanted:
        yield Finding(
            "genai-window-wrong",
            "error",
            f"{_FILE}, model.decoder.sliding_window.layers",
            f"{len(told)} layers are told to have a window, the checkpoint has {len(wanted)}",
            f"Write {wanted}, or leave sliding_window out.",
        )
