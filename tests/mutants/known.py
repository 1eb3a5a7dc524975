"""The faults of test_mutants.py and test_family_mutants.py, and where each of them acts."""

import test_family_mutants
import test_mutants
from mutants.mutant import Mutant, Topic

ROTATION, ATTENTION = r"self_attn\[(rotation|attention)", r"self_attn\[attention"
PROJECTIONS = r"self_attn(\.[qkv]_proj|\[)"
NORMS = r"norm"
MLP = r"mlp\[|mlp$"
LOCAL, GLOBAL = (0, 1, 3, 4, 6), (2, 5)  # of the tiny Gemma 3
Where = tuple[Topic, str, tuple[int, ...] | None]

PLACES: dict[str, Where] = {
    "local layers inherit the global factor": (Topic.ROPE, ROTATION, LOCAL),
    "global factor lost": (Topic.ROPE, ROTATION, GLOBAL),
    "global theta on local layers": (Topic.ROPE, ROTATION, LOCAL),
    "local theta on global layers": (Topic.ROPE, ROTATION, GLOBAL),
    "linear scaling ignored": (Topic.ROPE, ROTATION, None),
    "llama3 scaling ignored": (Topic.ROPE, ROTATION, None),
    "rows of q and k left interleaved": (Topic.ROPE, r"self_attn(\.[qk]_proj|\[)", None),
    "positions start again at each step": (Topic.STATE, ROTATION, None),
    "window ignored": (Topic.MASK, ATTENTION, LOCAL),
    "window one too long": (Topic.MASK, ATTENTION, LOCAL),
    "window one too short": (Topic.MASK, ATTENTION, LOCAL),
    "window on every layer": (Topic.MASK, ATTENTION, GLOBAL),
    "padding is seen": (Topic.MASK, ATTENTION, None),
    "later tokens are seen": (Topic.MASK, ATTENTION, None),
    "scale from head_dim": (Topic.ATTENTION, ATTENTION, None),
    "QK-norm dropped": (Topic.NORM, r"self_attn(\.[qk]_norm|\[)", None),
    "QK-norm after RoPE": (Topic.NORM, r"self_attn(\.[qk]_norm|\[)", None),
    "qkv bias missing": (Topic.WEIGHT, PROJECTIONS, None),
    "output bias missing": (Topic.WEIGHT, r"self_attn\.o_proj", None),
    "kv heads swapped": (Topic.WEIGHT, r"self_attn(\.[kv]_proj|\[)", None),
    "MLP bias missing": (Topic.WEIGHT, r"mlp\.", None),
    "1 + weight rounded to bf16": (Topic.NORM, NORMS, None),
    "1 + weight without the 1": (Topic.NORM, NORMS, None),
    "epsilon ten times larger": (Topic.NORM, NORMS, None),
    "embedding scale rounded to two decimals": (Topic.NUMBER, r"embed_tokens", None),
    "embedding scale rounded to fp16": (Topic.NUMBER, r"embed_tokens", None),
    "embedding scale rounded to bf16": (Topic.NUMBER, r"embed_tokens", None),
    "GELU by the error function": (Topic.MLP, MLP, None),
    "GELU by tanh": (Topic.MLP, MLP, None),
    "softcap dropped": (Topic.NUMBER, r"lm_head|logits", None),
    "one row of the head zero": (Topic.WEIGHT, r"lm_head|logits", None),
    "gate and up swapped": (Topic.MLP, r"mlp(\.(gate|up)_proj|\[)", None),
    "YaRN: attention factor lost": (Topic.ROPE, ROTATION, None),
    "YaRN: range not rounded to whole pairs": (Topic.ROPE, ROTATION, None),
    "YaRN: betas of the class": (Topic.ROPE, ROTATION, None),
    "YaRN ignored": (Topic.ROPE, ROTATION, None),
    "LongRoPE: short factors alone": (Topic.ROPE, ROTATION, None),
    "LongRoPE: long factors alone": (Topic.ROPE, ROTATION, None),
    "LongRoPE: factor lost within the original context": (Topic.ROPE, ROTATION, None),
    "dynamic scaling ignored": (Topic.ROPE, ROTATION, None),
    "partial rotary over the whole head": (Topic.ROPE, ROTATION, None),
    "partial rotary over a quarter": (Topic.ROPE, ROTATION, None),
    "RoPE where there is none": (Topic.ROPE, ROTATION, None),
    "scores not capped": (Topic.ATTENTION, ATTENTION, None),
    "scores capped at another value": (Topic.ATTENTION, ATTENTION, None),
    "window on the other layers": (Topic.MASK, ATTENTION, None),
    "uniform window ignored": (Topic.MASK, ATTENTION, None),
    "last layer of four full, not the first": (Topic.MASK, ATTENTION, None),
    "packed window ignored": (Topic.MASK, ATTENTION, None),
    "window from the first layer on": (Topic.MASK, ATTENTION, (0,)),
    "keys and values swapped": (Topic.WEIGHT, PROJECTIONS, None),
    "rows by head read as blocks": (Topic.WEIGHT, r"self_attn(\.(query_key_value|[qkv]_proj)|\[)", None),
    "LayerNorms of queries and keys swapped": (Topic.NORM, r"self_attn(\.[qk]_(layer)?norm|\[)", None),
    "LayerNorm of heads after RoPE": (Topic.NORM, r"self_attn(\.[qk]_(layer)?norm|\[)", None),
    "residual multiplier lost": (Topic.NUMBER, r"\[residual|\[to|norm|mlp|o_proj", None),
    "logits scale lost": (Topic.NUMBER, r"lm_head|logits", None),
    "logits divided, as Granite's are": (Topic.NUMBER, r"lm_head|logits", None),
    "norm of the other half's sum": (Topic.NORM, NORMS, None),
    "embedding multiplier lost": (Topic.NUMBER, r"embed_tokens", None),
    "attention multiplier lost": (Topic.ATTENTION, ATTENTION, None),
    "LayerNorm of weight without the 1": (Topic.NORM, NORMS, None),
    "LayerNorm with another epsilon": (Topic.NORM, NORMS, None),
    "relu without the square": (Topic.MLP, MLP, None),
    "GELU as published, by the error function": (Topic.MLP, MLP, None),
    "embedding not scaled": (Topic.NUMBER, r"embed_tokens", None),
}
SEEN = {
    "local layers inherit the global factor": "microsoft/onnxruntime-genai#2277",
    "linear scaling ignored": "microsoft/onnxruntime-genai#2142",
    "llama3 scaling ignored": "ggml-org/llama.cpp#8676",
    "rows of q and k left interleaved": "ggml-org/llama.cpp#3018",
    "positions start again at each step": "sonos/torch-to-nnef#217",
    "window ignored": "microsoft/onnxruntime-genai#552",
    "window one too long": "microsoft/onnxruntime#25927",
    "later tokens are seen": "sonos/torch-to-nnef#217",
    "QK-norm dropped": "onnxruntime/mobius#474",
    "QK-norm after RoPE": "pytorch/torchtune#2809",
    "qkv bias missing": "microsoft/onnxruntime-genai#432",
    "1 + weight rounded to bf16": "microsoft/onnxruntime-genai#2939",
    "embedding scale rounded to two decimals": "microsoft/onnxruntime-genai#2939",
    "embedding scale rounded to bf16": "huggingface/transformers#29402",
    "GELU by the error function": "vllm-project/vllm#3411",
    "softcap dropped": "microsoft/onnxruntime-genai#1420",
    "gate and up swapped": "ml-explore/mlx-lm#767",
    "YaRN ignored": "microsoft/onnxruntime-genai#2076",
    "LongRoPE: short factors alone": "microsoft/onnxruntime-genai#954",
    "partial rotary over the whole head": "vllm-project/vllm#16904",
    "RoPE where there is none": "onnxruntime/mobius#177",
    "scores not capped": "microsoft/onnxruntime-genai#876",
    "window on the other layers": "NVIDIA/TensorRT-Model-Connect#399",
    "residual multiplier lost": "ggml-org/llama.cpp#9412",
}


def _mutants() -> tuple[Mutant, ...]:
    every = {**test_mutants.MUTANTS, **test_family_mutants.MUTANTS}
    return tuple(
        Mutant(
            kind=kind,
            topic=PLACES[kind][0],
            checkpoint=known.checkpoint,
            source=known.target,
            module=PLACES[kind][1],
            layers=PLACES[kind][2],
            fault=known.fault,
            drop=known.drop,
            seen=SEEN.get(kind, ""),
        )
        for kind, known in every.items()
        if kind in PLACES  # a test holds that all are
    )


KNOWN = _mutants()
