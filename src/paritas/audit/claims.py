"""What a configuration says in words that all families share, for checkpoints that no family of ours reads.

Only what can be told without knowing the family: one epsilon, one activation, the window of each layer. A key that is
not there is not guessed.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from paritas.audit.finding import Finding, layer_of, layers
from paritas.audit.identity import Identity
from paritas.audit.numbers import activation_after, branches, made_of, norm_nodes
from paritas.audit.sites import PROJECTIONS, Site
from paritas.audit.view import View, attributes
from paritas.audit.windows import seen, window_at
from paritas.spec import Activation

_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "norm_eps", "layer_norm_epsilon", "norm_epsilon")
_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "relu": Activation.RELU,
    "relu2": Activation.RELU,
}
# Families whose layers all have the window, in transformers, where layer_types says nothing else.
_ALL_WINDOWED = frozenset({"mistral", "mixtral", "phi3", "starcoder2"})


def claim_findings(
    view: View, identity: Identity, found: Sequence[Site], config: Mapping[str, Any]
) -> Iterator[Finding]:
    """Attributes that contradict the configuration."""
    yield from _epsilons(view, identity, config)
    yield from _activations(view, identity, config)
    yield from _windows(view, found, config)


def _epsilons(view: View, identity: Identity, config: Mapping[str, Any]) -> Iterator[Finding]:
    told = [config[key] for key in _EPSILONS if isinstance(config.get(key), float)]
    if len(told) != 1:
        return
    wrong: dict[float, list[str]] = defaultdict(list)
    for node, tensor in norm_nodes(view, made_of(identity)):
        got = attributes(node).get("epsilon", 1e-5)
        if not math.isclose(got, told[0], rel_tol=1e-5) and ".q_" not in tensor and ".k_" not in tensor:
            wrong[got].append(tensor)
    for got, tensors in wrong.items():
        numbers = [n for tensor in tensors if (n := layer_of(tensor)) is not None]
        yield Finding(
            "norm-epsilon-wrong",
            "error",
            layers(numbers) if numbers else tensors[0],
            f"{len(tensors)} norms have epsilon {got:.6g}, the configuration says {told[0]:.6g}",
            f"Set epsilon to {told[0]:g}.",
        )


def _activations(view: View, identity: Identity, config: Mapping[str, Any]) -> Iterator[Finding]:
    words = [config[key] for key in ("hidden_act", "hidden_activation", "activation_function") if config.get(key)]
    wanted = _ACTIVATIONS.get(str(words[0])) if len(words) == 1 else None
    if wanted is None or str(config.get("model_type")).startswith("gemma"):  # Gemma reads hidden_act as something else
        return
    wrong: dict[str, list[int]] = defaultdict(list)
    made = made_of(identity)
    for node in view.nodes:
        stored = view.initializer(node.input[1]) if node.op_type in PROJECTIONS else None
        record = made.get(stored.name) if stored else None
        for tensor, output in branches(view, node, record) if record else ():
            layer, got = layer_of(tensor), activation_after(view, output) if ".mlp." in tensor else None
            if got is not None and layer is not None and got != wanted:
                wrong[got].append(layer)
    for got, numbers in wrong.items():
        yield Finding(
            "activation-wrong",
            "error",
            layers(numbers),
            f"{layers(numbers)}: the MLP's activation is {got}, the configuration says {words[0]}",
            f"Write {wanted}.",
        )


def _windows(view: View, found: Sequence[Site], config: Mapping[str, Any]) -> Iterator[Finding]:
    wanted = _claimed_windows(config)
    if wanted is None:
        return
    wrong: dict[tuple[int | None, int | None], list[int]] = defaultdict(list)
    for site in found:
        if site.layer < len(wanted):
            told, got = wanted[site.layer], window_at(view, site, wanted[site.layer] or 0)
            if got is not False and got != told:
                wrong[got, told].append(site.layer)
    for (got, told), numbers in wrong.items():
        yield Finding(
            "window-wrong",
            "error",
            layers(numbers),
            f"{layers(numbers)}: {seen(got)}, the configuration says {seen(told)}",
            "Give each layer its own window; a window counts the query's own position.",
        )


def _claimed_windows(config: Mapping[str, Any]) -> list[int | None] | None:
    """A window or None for each layer; None if the configuration does not say."""
    window, depth, kinds = config.get("sliding_window"), config.get("num_hidden_layers"), config.get("layer_types")
    if not isinstance(window, int) or not isinstance(depth, int):
        return None
    if isinstance(kinds, list):
        words = [str(kind) for kind in cast(list[Any], kinds)]
        known = set(words) <= {"sliding_attention", "full_attention"} and len(words) == depth
        return [window if word == "sliding_attention" else None for word in words] if known else None
    every: list[int | None] = [window] * depth
    return every if config.get("model_type") in _ALL_WINDOWED else None
