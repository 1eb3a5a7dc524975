"""A published configuration made smaller, one step after another, until its random model fits: what is left is told.

A step keeps every width it can: first the vocabulary goes, then depth (two layers of each kind, then one), then the
number of experts, and the width of MLPs last. Nothing here makes a weight.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Values = dict[str, Any]

VOCAB = 2003
BYTES = 10
"""A parameter's: the reference in fp64 while its fp32 weights go, and what is beside it."""
BASE = 3 << 29  # torch, ONNX Runtime and the logits
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
EXPERTS = ("num_experts", "num_local_experts")
CHOSEN = ("top_k_experts", "num_experts_per_tok", "experts_per_token")
REAL = "real"


@dataclass(frozen=True)
class Reduced:
    """A configuration, and whether every width in it is the published one (:data:`REAL`) or which is not."""

    values: Values
    widths: str


def ways(config: Values) -> Iterator[Reduced]:
    """The configuration itself, then every smaller one, the nearest to it first."""
    small = small_vocabulary(config)
    fewer = REDUCTIONS.get(config["model_type"], shallow)
    two, one = Reduced(fewer(small, 2), REAL), Reduced(fewer(small, 1), REAL)
    yield from (Reduced(config, REAL), Reduced(small, REAL), two, one)
    thin = (few_experts(two), few_experts(one))
    yield from thin
    yield from map(narrow, thin)


def fitting(config: Values, memory: float) -> Reduced:
    """The first of :func:`ways` whose model fits into ``memory`` bytes.

    Raises:
        MemoryError: none does.
    """
    least = math.inf
    for way in ways(config):
        need = BASE + BYTES * parameters(made(way.values))
        if need <= memory:
            return way
        least = min(least, need)
    raise MemoryError(f"the smallest model that has a layer of each kind takes {least / 2**30:.1f} GiB")


def shallow(config: Values, most: int) -> Values:
    """As many layers of each kind: a layer's kind is what the lists with one value for each layer say of it."""
    depth = config["num_hidden_layers"]
    each = {key: value for key, value in config.items() if isinstance(value, list) and len(value) == depth}
    kinds = [repr([values[layer] for values in each.values()]) for layer in range(depth)]
    seen: Counter[str] = Counter()
    kept: list[int] = []
    for layer, kind in enumerate(kinds):
        seen[kind] += 1
        if seen[kind] <= most:
            kept.append(layer)
    lists = {key: [values[layer] for layer in kept] for key, values in each.items()}
    return config | lists | {"num_hidden_layers": len(kept)}


def sharing(config: Values, most: int) -> Values:
    """The same apart for layers with keys of their own and for those that take another one's, which come last."""
    depth, shared = config["num_hidden_layers"], config["num_kv_shared_layers"]
    lists = [key for key, value in config.items() if isinstance(value, list) and len(value) == depth]
    own, last = (
        shallow(config | {key: config[key][part] for key in lists} | {"num_hidden_layers": count}, most)
        for part, count in ((slice(depth - shared), depth - shared), (slice(depth - shared, None), shared))
    )
    joined = {key: own[key] + last[key] for key in lists}
    numbers = {"num_hidden_layers": len(joined["layer_types"]), "num_kv_shared_layers": last["num_hidden_layers"]}
    return config | joined | numbers


def of_two_widths(config: Values, most: int) -> Values:
    """The same where single layers have other heads: those of their kind."""
    kinds, own = config["layer_types"], config["per_layer_config"]
    heads = {kinds[int(layer)]: values for layer, values in own.items()}
    fewer = sharing(config, most) if config["num_kv_shared_layers"] else shallow(config, most)
    layers = {str(layer): heads[kind] for layer, kind in enumerate(fewer["layer_types"]) if kind in heads}
    return fewer | {"per_layer_config": layers}


REDUCTIONS: Mapping[str, Callable[[Values, int], Values]] = {
    "gemma3n_text": sharing,
    "gemma4_text": of_two_widths,
    "gemma4_unified_text": of_two_widths,
}
"""model_type -> as many layers of each kind, where :func:`shallow` does not give them."""


def small_vocabulary(config: Values) -> Values:
    """The same with few tokens, and special ones among them."""
    tables = {key: VOCAB for key in ("vocab_size", "vocab_size_per_layer_input") if key in config}
    return config | tables | {key: min(number, 2) for number, key in enumerate(IDS)}


def few_experts(model: Reduced) -> Reduced:
    """The same with no more than twice as many experts as a token chooses."""
    config = model.values
    total = next((key for key in EXPERTS if config.get(key)), None)
    chosen = next((config[key] for key in CHOSEN if config.get(key)), 0)
    if total is None or config[total] <= 2 * chosen:
        return model
    return Reduced(config | {total: 2 * chosen}, f"{2 * chosen} of {config[total]} experts")


def narrow(model: Reduced) -> Reduced:
    """The same with MLPs no wider than the residual stream, but for the first where each layer has its own width."""
    config = model.values
    widths, most = config["intermediate_size"], config["hidden_size"]
    each = isinstance(widths, list)
    fewer = [widths[0], *(min(width, most) for width in widths[1:])] if each else min(widths, most)
    if fewer == widths:
        return model
    words = "narrow MLPs" if model.widths == REAL else f"{model.widths}, narrow MLPs"
    return Reduced(config | {"intermediate_size": fewer}, words)


def text_config(folder: Path) -> Values:
    """The text model's configuration as transformers resolves it, every value said."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder).get_text_config()
    return config.to_dict() | {"model_type": config.model_type}


def made(values: Values) -> Any:
    """transformers' configuration of these values, in bf16."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[values["model_type"]].from_dict(values)
    config.dtype = "bfloat16"
    return config


def parameters(config: Any) -> int:
    """Numbers of transformers' model of this configuration; none is made."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return sum(each.numel() for each in AutoModelForCausalLM.from_config(config).parameters())
