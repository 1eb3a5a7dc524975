"""What is known of other exporters' packages of the checkpoints in zoo.py: each wrong one, and how it shows.

Every line was found by reading the exporter or by one change that made its package right; see docs/log.md. What is
not listed is right. Packages of less than fp32 are not in it: they are not judged by their own noise yet.
"""

LONE = "a scale, a norm, the embedding, the MLP or the head"
SECOND = "RoPE, or the attention's scale, softcap or q/k norm"
WINDOW = "the sliding-window mask"
UNLOADABLE = "INVALID_GRAPH"

BUILDER = {
    "gemma": LONE,  # 1 + w rounded to bf16, embedding scale rounded to two decimals
    "gemma-144": LONE,  # 1 + w alone: the scale is 12
    "gemma2": LONE,  # as gemma
    "gemma2-144": LONE,
    "gemma2-wide": LONE,
    "kept-gemma2": LONE,
    "kept-mistral": WINDOW,
    "kept-phi": LONE,
    "kept-yarn": SECOND,
    "llama-linear": SECOND,  # RoPE scaling dropped
    "llama-yarn": SECOND,  # dropped
    "mistral-window": WINDOW,  # no window in the graph
    "nemotron": LONE,  # 1 + w, epsilon
    "olmo": LONE,  # RMSNorm for LayerNorm
    "phi": LONE,  # epsilon
    "phi3-window": WINDOW,
    "qwen3-yarn": SECOND,  # correction range not rounded to whole dimensions
}
MOBIUS = {
    "gemma": LONE,  # embedding scale rounded to two decimals
    "gemma2": LONE,  # the same, and local and global layers swapped
    "gemma2-144": WINDOW,  # swapped alone
    "gemma3": LONE,  # embedding scale rounded to fp16, attention scale, final softcap
    "gemma3-144-scale": SECOND,  # query_pre_attn_scalar
    "kept-gemma2": LONE,
    "helium": SECOND,  # pairs of neighbours rotated as halves
    "kept-gemma3": LONE,
    "llama-biased": LONE,  # mlp_bias
}
DROPPED_WINDOWS = {"kept-mistral": WINDOW, "mistral-window": WINDOW, "phi3-window": WINDOW, "qwen2-window": WINDOW}
SDPA = dict.fromkeys(["gemma2", "gemma2-144", "gemma2-wide", "kept-gemma2"], SECOND)  # attention softcap lost in SDPA

WRONG: dict[str, dict[str, str]] = {
    "builder": BUILDER,
    "builder-growing": BUILDER,
    "mobius": MOBIUS | DROPPED_WINDOWS,
    "mobius-cpu": MOBIUS  # one RoPE for all layers of Gemma 3, and no window beside it
    | {"gemma3-144": SECOND, "qwen2-window": WINDOW, "nemotron": UNLOADABLE},
    "mobius-static": {"llama-biased": LONE} | DROPPED_WINDOWS,
    "optimum": SDPA,
    "optimum-no-cache": SDPA,
}
"""Exporter -> case -> what the signature, or the refusal, says."""
