"""Kinds of wrong numbers and functions outside of the attention."""

from collections.abc import Callable

import ml_dtypes
import numpy as np

from paritas.diagnose.difference import Difference
from paritas.diagnose.kinds.base import Kind, always
from paritas.diagnose.xielu import Xielu


def _is_rounded(difference: Difference) -> bool:
    wanted, got = difference.reference, difference.package
    short = [float(np.asarray(wanted, kind)) for kind in (np.float16, ml_dtypes.bfloat16)]
    return any(
        abs(got - value) <= 1e-6 * abs(value) for value in (*short, round(wanted, 1), round(wanted, 2), round(wanted))
    )


def _activations(got: str, wanted: str | None = None) -> Callable[[Difference], bool]:
    return lambda d: d.package == got and wanted in (None, d.reference)


KINDS = (
    Kind(
        "embedding-scale-rounded",
        "embedding-scale",
        _is_rounded,
        "The scale of the embedding went through a short type, or a text of two decimals.",
        ("microsoft/onnxruntime-genai#2939", "huggingface/transformers#29402"),
    ),
    Kind(
        "embedding-scale-missing",
        "embedding-scale",
        lambda d: d.package == 1.0,
        "The model multiplies its embedding by a number (Gemma: the root of the hidden size; Granite: a multiplier), "
        "which the package leaves out.",
        ("ggml-org/llama.cpp#9412",),
    ),
    Kind(
        "embedding-scale-unwanted",
        "embedding-scale",
        lambda d: d.reference == 1.0,
        "The embedding is multiplied by a number, as another family's is; the model's is not.",
    ),
    Kind(
        "embedding-scale-wrong",
        "embedding-scale",
        always,
        "The embedding is multiplied by another number.",
        ("unslothai/unsloth#1218",),
    ),
    Kind(
        "per-layer-scale-missing",
        "per-layer-scale",
        lambda d: d.package == 1.0,
        "Per-layer inputs are made of rows of a table and of a projection of the embedding, and each of the two and "
        "their sum is multiplied by a number; the package leaves one out.",
    ),
    Kind(
        "per-layer-scale-wrong",
        "per-layer-scale",
        always,
        "Per-layer inputs are multiplied by another number.",
    ),
    Kind(
        "multiplier-absent",
        "multiplier",
        always,
        "The model multiplies what a projection takes by a vector of the checkpoint, which the package leaves out.",
    ),
    Kind(
        "activation-sparsity-missing",
        "activation-sparsity",
        lambda d: d.package is None,
        "Of the MLP's gates, the model lets through those alone that stand out of their token's (activation "
        "sparsity); the package lets through all.",
    ),
    Kind(
        "activation-sparsity-unwanted",
        "activation-sparsity",
        lambda d: d.reference is None,
        "Gates are cut off in a layer in which the model cuts none off: the pattern of the layers was not read.",
    ),
    Kind(
        "activation-sparsity-wrong",
        "activation-sparsity",
        always,
        "Gates are cut off at another height: the standard deviation is a sample's and not the population's, or the "
        "share is another.",
    ),
    Kind(
        "activation-gelu-exact",
        "activation",
        _activations("gelu", "gelu_tanh"),
        "GELU by the error function where the model has its approximation by tanh. Tokens hardly ever change.",
        ("vllm-project/vllm#3411", "huggingface/transformers#29402"),
    ),
    Kind(
        "activation-gelu-tanh",
        "activation",
        _activations("gelu_tanh", "gelu"),
        "GELU by tanh where the model has the one by the error function. Tokens hardly ever change.",
        ("OpenNMT/CTranslate2#1658",),
    ),
    Kind(
        "activation-quick-gelu",
        "activation",
        _activations("quick_gelu"),
        "The quick approximation of GELU (x * sigmoid(1.702 x)) where the model has another activation.",
    ),
    Kind(
        "activation-missing",
        "activation",
        _activations("none"),
        "The MLP has no activation.",
    ),
    Kind(
        "activation-number-wrong",
        "activation",
        lambda d: isinstance(d.package, Xielu) and isinstance(d.reference, Xielu),
        "xIELU has numbers that each layer learns; the package has others: an initial value, or another layer's.",
    ),
    Kind(
        "activation-wrong",
        "activation",
        always,
        "The MLP has another activation: the key was read under another name, or is a default.",
        ("vllm-project/vllm#3411",),
    ),
    Kind(
        "logit-softcap-missing",
        "logit-softcap",
        lambda d: d.package is None,
        "The cap of the logits is left out. It keeps their order, so greedy tokens are right and sampled ones are not.",
        ("microsoft/onnxruntime-genai#1420",),
    ),
    Kind(
        "logit-softcap-unwanted",
        "logit-softcap",
        lambda d: d.reference is None,
        "Logits are capped, and the model caps none: a default of the family was taken for this checkpoint.",
    ),
    Kind(
        "logit-softcap-wrong",
        "logit-softcap",
        always,
        "Logits are capped at another number.",
    ),
    Kind(
        "logit-rounded",
        "logit-rounding",
        always,
        "Logits go through a short type on their way out: the head computes in it, or its output is declared so.",
        ("microsoft/onnxruntime-genai#1479",),
    ),
    Kind(
        "logit-function-wrong",
        "logit-function",
        always,
        "Something is done to the logits that the model does not do.",
    ),
    Kind(
        "logit-factor-missing",
        "logit-factor",
        lambda d: d.package == 1.0,
        "The model multiplies its logits by a number, which the package leaves out; greedy tokens are right.",
        ("ggml-org/llama.cpp#9412", "unslothai/unsloth#1218"),
    ),
    Kind(
        "logit-factor-wrong",
        "logit-factor",
        always,
        "Logits are multiplied by another number: divided instead of multiplied, or a factor too many.",
        ("unslothai/unsloth#1218",),
    ),
    Kind(
        "residual-multiplier-missing",
        "residual-multiplier",
        lambda d: d.package == 1.0,
        "The model multiplies what a layer adds by a number (residual_multiplier), which the package leaves out.",
        ("ggml-org/llama.cpp#9412", "unslothai/unsloth#1218"),
    ),
    Kind(
        "residual-multiplier-wrong",
        "residual-multiplier",
        always,
        "What a layer adds is multiplied by another number.",
        ("unslothai/unsloth#1218",),
    ),
)
