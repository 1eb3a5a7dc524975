"""What a diagnosis may call each kind of mutant: written after the mutants, with the list of its codes at hand.

A mutant is named if every pattern of its line is a code of some cause, and no cause has another one. ``-differs`` ends
the code of a parameter whose value is told, and of which no usual mistake of exporters is recognised.
"""

import re
from collections.abc import Sequence

from mutants.gemmas import ANSWERS
from mutants.mutant import Mutant, Topic

OF_A_TOPIC = {
    Topic.ROPE: r"rope-(factor|bands|scaling|theta|table|attention-factor|dimension|of-another|switch|long-factors)",
    Topic.MASK: r"window|mask",
    Topic.ATTENTION: r"attention-scale",
    Topic.NORM: r"norm",
    Topic.MLP: r"activation|gate-up",
    Topic.NUMBER: r"logit|embedding|residual",
    Topic.WEIGHT: r"weight-(?!noise)|bias",
    Topic.EXPERTS: r"expert|router|moe",
    Topic.STATE: r"cache|past|state",
    Topic.PAIR: r"",
    Topic.PRECISION: r"weight",
}
EPSILON, THETA, SCALE = r"norm-epsilon", r"rope-(theta|table)", r"attention-scale"
WINDOW, ACTIVATION, EMBEDDING = r"window", r"activation", r"embedding-scale"
OFFSET, SOFTCAP, PAIRING = (
    r"norm-offset|norm-weight|weight-(rounded|differs)",
    r"logit-softcap",
    r"rope-pairing|rotary-rows",
)
ANOTHER = r"weight-of-another|weight-(row|differs)"
BIAS = r"bias"
SWAPPED = r"weight-of-another|qk-norms-swapped"

OF_A_KIND: dict[str, Sequence[str]] = {
    **ANSWERS,
    # blind
    "rows of k alone interleaved": [r"rotary-rows|weight-rows|rope-pairing"],
    "queries rotated one position ahead of keys": [r"position"],
    "one layer rotates neighbours": [PAIRING],
    "query heads dealt out to key-value heads in turn": [r"(kv-)?heads|weight-rows"],
    "attention's output not transposed before o_proj": [r"weight-(rows|columns|differs)|heads"],
    "values of one head negated": [r"weight-"],
    "the residual is taken behind the norm": [r"residual"],
    "final norm applied twice": [r"norm"],
    "embedding scale applied to the tied head too": [r"logit-factor"],
    "logits capped twice": [SOFTCAP],
    "the stream added twice in one layer": [r"residual"],
    "what attention gives divided by the root of twice the layers": [r"residual|factor"],
    "bias subtracted": [BIAS],
    "a norm divides by the root of the sum": [r"norm|factor"],
    "temperature of the generation configuration in the graph": [r"logit-factor"],
    "values rotated too": [r"rope|rotat"],
    "convolution state not carried": [r"state|cache|past"],
    # blind, of families
    "correction coefficients without the one": [r"stream|altup|router"],
    "Laurel of the stream before its norm": [r"laurel|residual|wiring|norm"],
    "layer_scalar before the per-layer input is added": [r"layer-scalar|residual|wiring"],
    "values normed over all heads at once": [r"value-norm"],
    "proportional RoPE turns the last pairs": [r"rope-"],
    "queries of sharing layers not rotated": [r"rope-"],
    "the last part of a head rotated, not the first": [r"rotary-rows|weight-rows|rope-"],
    "residual multiplier of the mixture alone lost": [r"residual"],
    "gates and ups in turns read as halves": [r"gate-up|expert|weight-row"],
    "padding enters the convolution": [r"mask|padding|state"],
    "the MLP of a parallel block takes the stream itself": [r"residual|parallel|wir|norm"],
    "norm of queries and keys head by head": [r"qk-norm"],
    # known
    "rows of q and k left interleaved": [PAIRING],
    "positions start again at each step": [r"positions-"],
    "scale from head_dim": [SCALE],
    "QK-norm dropped": [r"qk-norm"],
    "QK-norm after RoPE": [r"qk-norm"],
    "kv heads swapped": [r"(kv-)?heads|weight-rows"],
    "1 + weight rounded to bf16": [OFFSET],
    "1 + weight without the 1": [OFFSET],
    "epsilon ten times larger": [EPSILON],
    "softcap dropped": [SOFTCAP],
    "gate and up swapped": [r"gate-up|weight-of-another"],
    "one row of the head zero": [r"weight-row"],
    "RoPE where there is none": [r"rope-on-nope|rope-missing|rope-unwanted"],
    "scores not capped": [r"attention-softcap"],
    "scores capped at another value": [r"attention-softcap"],
    "keys and values swapped": [r"weight-of-another"],
    "norm of the other half's sum": [r"norms-exchanged"],
    "two norms exchanged": [r"norms-exchanged"],
    "rows by head read as blocks": [r"weight-|heads"],
    "LayerNorms of queries and keys swapped": [r"norms-exchanged|bias-misplaced|qk-norms-swapped"],
    "LayerNorm of heads after RoPE": [r"qk-norm"],
    "residual multiplier lost": [r"residual-multiplier"],
    "logits scale lost": [r"logit-factor"],
    "embedding multiplier lost": [EMBEDDING],
    "attention multiplier lost": [SCALE],
    "LayerNorm of weight without the 1": [OFFSET],
    "LayerNorm with another epsilon": [EPSILON],
    # more
    "pairs of halves": [r"rope-pairing"],
    "pairs of neighbours": [r"rope-pairing"],
    "RoPE on layers without one": [r"rope-on-nope|rope-unwanted"],
    "a head's queries exchanged with another's": [r"heads|weight-rows"],
    "a token does not see itself": [r"mask"],
    "causal mask from the upper left corner": [r"mask|position"],
    "bias that was never set is noise": [r"weight-noise|bias"],
    "clipping of q, k and v ignored": [r"(qkv-)?clip"],
    "attention sinks dropped": [r"sink"],
    "epsilon of the class": [EPSILON],
    "epsilon of the final norm alone": [EPSILON],
    "RMSNorm for LayerNorm": [r"norm-kind"],
    "bias of LayerNorm lost": [r"bias|weight-zeroed|norm"],
    "q_norm and k_norm exchanged": [SWAPPED],
    "k_norm of one layer left out": [r"qk-norm"],
    "norm behind attention left out": [r"norm"],
    "norm weights rounded to fp16": [r"weight-(rounded|differs)|norm"],
    "parallel layers wired one after the other": [r"residual|parallel|wir"],
    "final norm of another place": [r"final-norm|weight-of-another"],
    "bias of the head missing": [BIAS],
    "logits rounded to bf16": [r"logit"],
    "head tied that is not": [r"head-tied"],
    "one matrix through int8": [r"weight-"],
    # others
    "as released: norms in bf16, embedding scale": [OFFSET, EMBEDDING],
    "as released: epsilon": [EPSILON],
    "as released: embedding scale, layers' kinds swapped": [EMBEDDING, WINDOW],
    "as released: embedding scale, attention scale, softcap": [EMBEDDING, SCALE, SOFTCAP],
    "as released: and one RoPE for all layers, no window": [EMBEDDING, SCALE, SOFTCAP, r"rope-", WINDOW],
    "as released: scores not capped": [r"attention-softcap"],
    "the stream added twice behind attention": [r"residual"],
    "the stream added twice for a norm alone": [r"residual"],
    # pairs
    "1 + weight in bf16, embedding scale rounded": [OFFSET, EMBEDDING],
    "theta of the class, window one too long": [THETA, WINDOW],
    "linear scaling lost, epsilon of the class": [r"rope-", EPSILON],
    "scale from hidden, q_norm and k_norm exchanged": [SCALE, SWAPPED],
    "embedding and residual multipliers lost": [EMBEDDING, r"residual-multiplier"],
    "window one too long, GELU for SiLU": [WINDOW, ACTIVATION],
    "biases of k and v exchanged, theta of the class": [BIAS, THETA],
    "whole heads rotated, epsilon of the class": [r"rope-", EPSILON],
    "weights of experts not normalised, theta of the class": [OF_A_TOPIC[Topic.EXPERTS], THETA],
    "YaRN's attention factor lost, scale from hidden": [r"rope-attention-factor|rope-table|rope-scaling", SCALE],
    "one matrix through int8, theta of the class": [r"weight-", THETA],
    "logits uncapped, GELU by the error function": [SOFTCAP, ACTIVATION],
    "two layers' down_proj the same, a norm of another layer": [r"weight-of-another"],
    # reduced
    "int4, epsilon ten times larger": [EPSILON],
    "int4, theta of the class": [THETA],
    "int4, window one too long": [WINDOW],
    "int4, gate and up swapped": [r"gate-up|weight-of-another"],
    "int8, epsilon of the class": [EPSILON],
    "fp16, theta of the class": [THETA],
    "fp16, 1 + weight rounded to fp16": [OFFSET],
}


def answers(mutant: Mutant) -> Sequence[str]:
    """Patterns of which every one has to be the beginning of a cause's code."""
    return OF_A_KIND.get(mutant.kind, [OF_A_TOPIC[mutant.topic]])


def is_named(mutant: Mutant, codes: Sequence[str]) -> bool:
    """Whether the causes are the fault, all of it and nothing else."""
    wanted = answers(mutant)
    every = all(any(re.match(pattern, code) for code in codes) for pattern in wanted)
    return bool(codes) and every and all(any(re.match(pattern, code) for pattern in wanted) for code in codes)
