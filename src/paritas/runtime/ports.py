"""What a decoder's graph takes and gives, found in the graph itself, whoever wrote it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from paritas.runtime.caches import Cache, read_caches
from paritas.runtime.counters import Counter, is_counter, read_counter
from paritas.runtime.proto import load
from paritas.runtime.rows import read_kept
from paritas.runtime.states import Carried, read_states
from paritas.runtime.tensors import FLOATS_OR_UNSAID, INTEGERS, Port, refused
from paritas.runtime.wiring import Wiring

MASKS = (*INTEGERS, onnx.TensorProto.BOOL)


@dataclass(frozen=True)
class Ports:
    """Names of a decoder's inputs and outputs.

    Attributes:
        input_ids: ``[batch, new]``.
        attention_mask: ``[batch, past + new]``, or None.
        position_ids: ``[batch, new]``, or None.
        counters: other small inputs that tell where in the sequence the call is.
        logits: ``[batch, new, vocab]``.
        caches: one for each layer that owns a cache, by layer.
        states: what else goes from call to call.
        vocab: width of the logits; None if the graph does not say.
        batch: rows that it takes; None for any number.
        new: tokens that it takes in a call; None for any number.
        mask_width: columns that the mask always has; None if there are as many as tokens.
        kept: an input that need not be given, and says of how many last positions there are logits, 0 for all; or None.
    """

    input_ids: str
    attention_mask: str | None
    position_ids: str | None
    counters: tuple[Counter, ...]
    logits: str
    caches: tuple[Cache, ...]
    states: tuple[Carried, ...]
    vocab: int | None
    batch: int | None = None
    new: int | None = None
    mask_width: int | None = None
    kept: str | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of all inputs that are no caches."""
        named = (self.input_ids, self.attention_mask, self.position_ids)
        return (*(name for name in named if name is not None), *(counter.name for counter in self.counters))

    @property
    def carried(self) -> tuple[Carried, ...]:
        """All that goes from call to call: keys and values in turn, layer by layer, then the states."""
        halves = (half for cache in self.caches for half in cache.halves)
        return (*halves, *self.states)

    @property
    def capacity(self) -> int | None:
        """The most tokens of a sequence; None if nothing in the graph limits them."""
        rooms = [cache.capacity for cache in self.caches if cache.capacity is not None]
        return min([*rooms, *([] if self.mask_width is None else [self.mask_width])], default=None)


def read_ports(model: Path, head_size: int | None = None, proto: onnx.ModelProto | None = None) -> Ports:
    """The ports of the graph ``model``; its weights are not opened.

    Args:
        model: the graph's file.
        head_size: width of a head, asked only where neither the caches' shapes nor the attention tell it.
        proto: the graph itself, where it is another than the file's; ``model`` is then only its place.

    Raises:
        ParitasError: ``package-model-broken``.
        Invalid: the graph is no decoder that can be fed from token ids: ``graph-input-unknown``,
            ``graph-no-input-ids``, ``graph-no-logits``, ``graph-cache-unpaired``, ``graph-cache-layout``.
    """
    proto = load(model) if proto is None else proto
    wiring = Wiring(proto)
    stored = {tensor.name for tensor in proto.graph.initializer}  # an input with a default need not be fed
    inputs = [Port.of(value) for value in proto.graph.input if value.name not in stored]
    outputs = [Port.of(value) for value in proto.graph.output]
    caches = read_caches(wiring, inputs, outputs, head_size, model)
    keys = {half.past for cache in caches for half in cache.halves}
    states = read_states([port for port in inputs if port.name not in keys], outputs)
    carried = [*(half for cache in caches for half in cache.halves), *states]
    fed = {each.past for each in carried}
    rest = [port for port in inputs if port.name not in fed]
    ids, mask, positions = _token_inputs([port for port in rest if not is_counter(port)], model)
    counters = tuple(read_counter(wiring, port, model) for port in rest if is_counter(port))
    given = {each.present for each in carried}
    logits = _logits([port for port in outputs if port.name not in given], model)
    return Ports(
        input_ids=ids.name,
        attention_mask=None if mask is None else mask.name,
        position_ids=None if positions is None else positions.name,
        counters=counters,
        logits=logits.name,
        caches=caches,
        states=states,
        vocab=logits.dims[-1] if logits.dims else None,
        batch=ids.dims[0],
        new=ids.dims[1],
        mask_width=None if mask is None else mask.dims[1],
        kept=read_kept(proto),
    )


def _token_inputs(ports: Sequence[Port], model: Path) -> tuple[Port, Port | None, Port | None]:
    """Tell ids, mask and positions apart. All are ``[batch, length]``: only their names can tell."""
    roles: dict[str, list[Port]] = {"ids": [], "mask": [], "position": []}
    for port in ports:
        role = "mask" if "mask" in port.name else "position" if "position" in port.name else "ids"
        if port.element not in (MASKS if role == "mask" else INTEGERS) or len(port.dims) != 2:
            raise refused(
                "graph-input-unknown",
                f"input {port.name!r} ({port}) is neither ids, mask, positions nor a layer's cache",
                model,
            )
        roles[role].append(port)
    for role, found in roles.items():
        if len(found) > 1:
            names = ", ".join(port.name for port in found)
            raise refused("graph-input-unknown", f"several inputs could be the {role}: {names}", model)
    if not roles["ids"]:
        raise refused("graph-no-input-ids", "no input takes token ids [batch, length]", model)
    (ids,), mask, positions = roles["ids"], *(next(iter(roles[role]), None) for role in ("mask", "position"))
    return ids, mask, positions


def _logits(ports: Sequence[Port], model: Path) -> Port:
    """The output called logits, or the only one that could be."""
    could = [port for port in ports if port.element in FLOATS_OR_UNSAID and len(port.dims) in (0, 3)]
    named = [port for port in could if "logits" in port.name]
    found = named or could
    if len(found) != 1:
        names = ", ".join(port.name for port in ports) or "none"
        raise refused("graph-no-logits", f"no single output is logits [batch, length, vocab]; outputs: {names}", model)
    return found[0]
