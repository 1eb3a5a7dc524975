"""Kinds of wrong attention: scale, cap, window, mask."""

import math

from paritas.diagnose.difference import Difference
from paritas.diagnose.kinds.base import Kind, always
from paritas.diagnose.parameters.masks import Sight


def _sights(difference: Difference) -> tuple[Sight, Sight]:
    return difference.package, difference.reference


def _window_by_one(difference: Difference) -> bool:
    got, wanted = _sights(difference)
    return got.window is not None and wanted.window is not None and abs(got.window - wanted.window) == 1


def _from_head_dim(difference: Difference) -> bool:
    return math.isclose(difference.package, difference.facts["head_dim"] ** -0.5, rel_tol=1e-5)


KINDS = (
    Kind(
        "attention-scale-from-head-dim",
        "attention-scale",
        _from_head_dim,
        "Scores are multiplied by head_dim ** -0.5, the usual default; the model names another number "
        "(query_pre_attn_scalar, attention_multiplier).",
        ("ggml-org/llama.cpp#9412", "onnxruntime/mobius granite"),
    ),
    Kind(
        "attention-scale-wrong",
        "attention-scale",
        always,
        "Scores are multiplied by another number, once too often, or not at all.",
        ("ggml-org/llama.cpp#9412",),
    ),
    Kind(
        "attention-softcap-missing",
        "attention-softcap",
        lambda d: d.package is None,
        "The cap of the scores is lost: SDPA and most fused operators know none, and who traces SDPA drops it.",
        ("microsoft/onnxruntime-genai#876", "microsoft/onnxruntime-genai#692"),
    ),
    Kind(
        "attention-softcap-unwanted",
        "attention-softcap",
        lambda d: d.reference is None,
        "Scores are capped, and the model caps none.",
    ),
    Kind(
        "attention-softcap-wrong",
        "attention-softcap",
        always,
        "Scores are capped at another number.",
    ),
    Kind(
        "sinks-missing",
        "attention-sinks",
        always,
        "The model has a learned number a head that takes part in the softmax; the package's attention knows none.",
        ("vllm-metal#550", "microsoft/onnxruntime#25269"),
    ),
    Kind(
        "mask-not-causal",
        "mask",
        lambda d: not d.package.causal,
        "A query sees later keys: the causal part of the mask was lost, or degenerated when the graph was traced with "
        "one token.",
        ("sonos/torch-to-nnef#217", "microsoft/onnxruntime#29020"),
    ),
    Kind(
        "mask-forgets-the-past",
        "mask",
        lambda d: not d.package.counts_past,
        "The causal mask begins anew with each call: its first token sees the first key alone, and not what is cached. "
        "One pass is right, every later call is wrong.",
        ("microsoft/onnxruntime#29020",),
    ),
    Kind(
        "mask-hides-the-token-itself",
        "mask",
        lambda d: not d.package.sees_itself,
        "A query sees the keys before its own, and not its own: less was written for less or equal.",
    ),
    Kind(
        "mask-irregular",
        "mask",
        lambda d: not d.package.regular,
        "Which keys a query sees follows no window: the mask is right in some calls and wrong in others.",
        ("microsoft/onnxruntime#29020",),
    ),
    Kind(
        "window-dropped",
        "mask",
        lambda d: d.package.window is None and d.reference.window is not None,
        "Layers with a sliding window see everything: the fused path has no window, or it was disabled. Right until "
        "the text is longer than the window.",
        ("onnxruntime/mobius#371", "microsoft/onnxruntime-genai#282", "microsoft/onnxruntime-genai#552"),
    ),
    Kind(
        "window-on-global-layer",
        "mask",
        lambda d: d.package.window is not None and d.reference.window is None,
        "Layers that see everything in the model have a window: layer_types was ignored, or local and global layers "
        "were swapped.",
        ("NVIDIA TensorRT Model Connect#399",),
    ),
    Kind(
        "window-off-by-one",
        "mask",
        _window_by_one,
        "Two definitions of a window: whether it counts the query's own position.",
        ("microsoft/onnxruntime#25927",),
    ),
    Kind(
        "window-wrong",
        "mask",
        lambda d: d.package.window != d.reference.window,
        "The window has another size.",
        ("microsoft/onnxruntime-genai#282",),
    ),
    Kind(
        "mask-shows-padding",
        "mask",
        lambda d: not d.package.hides_padding,
        "A query sees the padding before a text: attention_mask did not reach the mask. Only padded rows are wrong.",
        ("huggingface/optimum#1146", "microsoft/onnxruntime#27992"),
    ),
    Kind(
        "qkv-clip-missing",
        "qkv-clip",
        lambda d: d.package is None,
        "The model clips queries, keys and values behind their projections (clip_qkv); the package does not.",
    ),
    Kind(
        "qkv-clip-wrong",
        "qkv-clip",
        always,
        "Queries, keys and values are clipped at another number.",
    ),
    Kind(
        "attention-rounded",
        "attention-rounded",
        always,
        "What attention takes is rounded to a short type on the way, in a graph of a longer one.",
    ),
    Kind(
        "kv-source-wrong",
        "kv-source",
        always,
        "A layer without keys and values of its own attends to those of the wrong layer: the last one of its kind "
        "keeps them (num_kv_shared_layers).",
    ),
    Kind(
        "cache-of-another-layer",
        "cache",
        lambda d: d.facts["other"] is not None,
        "A layer goes on from what another one kept: caches were numbered anew, or wired to the wrong layer. One pass "
        "is right, every later call is wrong.",
        ("onnxruntime/mobius#474",),
    ),
    Kind(
        "cache-lost",
        "cache",
        lambda d: d.facts["lost"],
        "What was kept of earlier calls does not reach the layer. One pass is right, every later call is wrong.",
        ("onnxruntime/mobius nemotron_h",),
    ),
    Kind(
        "cache-rounded",
        "cache",
        lambda d: d.facts["rounded"] is not None,
        "What is kept of earlier calls is rounded to a short type, in a graph of a longer one.",
    ),
    Kind(
        "cache-changed",
        "cache",
        always,
        "What is kept of earlier calls is changed before it is used.",
    ),
)
