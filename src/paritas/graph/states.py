"""What a layer carries from call to call: names and shapes of the graph's inputs and outputs for it."""

from dataclasses import dataclass

import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.spec import Attention, Decoder, Mixer, ShortConvolution

GROWS = "length"
"""Stands for the number of tokens: ``past`` before the call and ``total`` after it."""


@dataclass(frozen=True)
class State:
    """One tensor of a layer; ``shape`` without the batch."""

    past: str
    present: str
    shape: tuple[int | str, ...]

    def sizes(self, length: str) -> list[int | str]:
        """With the batch, and with ``length`` for what grows."""
        return ["batch", *(length if size == GROWS else size for size in self.shape)]


def states(mixer: Mixer, hidden: int, layer: int) -> tuple[State, ...]:
    """Keys and values, [kv_heads, length, head_dim] each; or what a convolution has seen last, [hidden, kernel - 1].

    A layer that attends to another one's keys carries nothing.
    """
    match mixer:
        case Attention(keys_of=int()):
            return ()
        case Attention():
            shape = (mixer.kv_heads, GROWS, mixer.head_dim)
            return tuple(
                State(f"past_key_values.{layer}.{part}", f"present.{layer}.{part}", shape) for part in ("key", "value")
            )
        case ShortConvolution():
            return (State(f"past.{layer}.conv", f"present.{layer}.conv", (hidden, mixer.kernel - 1)),)


def past_states(graph: Graph, spec: Decoder) -> list[tuple[ir.Value, ...]]:
    """The graph's inputs for them, layer by layer."""
    return [
        tuple(
            graph.input(state.past, ir.DataType.FLOAT, state.sizes("past"))
            for state in states(layer.mixer, spec.hidden, index)
        )
        for index, layer in enumerate(spec.layers)
    ]


def present_states(graph: Graph, spec: Decoder, present: list[tuple[ir.Value, ...]]) -> None:
    """Make ``present`` the graph's outputs for them."""
    for index, (layer, values) in enumerate(zip(spec.layers, present, strict=True)):
        for state, value in zip(states(layer.mixer, spec.hidden, index), values, strict=True):
            graph.output(value, state.present, ir.DataType.FLOAT, state.sizes("total"))
