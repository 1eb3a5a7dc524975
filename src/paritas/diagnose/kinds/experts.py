"""Kinds of wrong mixtures of experts."""

from paritas.diagnose.difference import Difference
from paritas.diagnose.kinds.base import Kind, always


def _holds(word: str, difference: Difference) -> bool:
    return word in difference.facts["likeness"]


KINDS = (
    Kind(
        "router-normalization-wrong",
        "expert-routing",
        lambda d: d.package.normalized != d.reference.normalized and d.package.scoring == d.reference.scoring,
        "The weights of the chosen experts are divided by their sum where the model does not (norm_topk_prob), or are "
        "not where it does: softmax before or after the choice.",
        ("pytorch/torchtitan#1448", "NVIDIA/Megatron-LM#955"),
    ),
    Kind(
        "router-experts-count-wrong",
        "expert-routing",
        lambda d: d.package.chosen != d.reference.chosen and d.package.scoring == d.reference.scoring,
        "Each token goes to more or fewer experts than the configuration says (num_experts_per_tok).",
    ),
    Kind(
        "router-scoring-wrong",
        "expert-routing",
        always,
        "Scores become weights by another function: a sigmoid of each is another family's router.",
        ("NVIDIA/Megatron-LM#955",),
    ),
    Kind(
        "experts-gate-up-exchanged",
        "expert-gating",
        lambda d: d.package.exchanged != d.reference.exchanged,
        "The activation is applied to the experts' up projection: the halves of gate and up changed places, or are "
        "read one after the other where they lie in turn.",
        ("flashinfer-ai/flashinfer#4130",),
    ),
    Kind(
        "experts-swiglu-number-wrong",
        "expert-gating",
        lambda d: d.package.activation == d.reference.activation == "clamped",
        "The experts' SwiGLU has a number of the class and not of the configuration (swiglu_alpha, swiglu_limit).",
        ("microsoft/onnxruntime-genai#1915",),
    ),
    Kind(
        "experts-activation-wrong",
        "expert-gating",
        always,
        "The experts have another activation: the operator's slot for it holds a default.",
        ("microsoft/onnxruntime-genai#1861",),
    ),
    Kind(
        "experts-gate-up-misplaced",
        "expert-weights",
        lambda d: _holds("part", d),
        "An expert holds the values of its other projection: the halves of gate and up changed places.",
        ("flashinfer-ai/flashinfer#4130",),
    ),
    Kind(
        "experts-reordered",
        "expert-weights",
        lambda d: _holds("expert", d),
        "Experts hold each other's weights: they were stacked in another order than the router numbers them.",
        ("onnxruntime/mobius#324",),
    ),
    Kind(
        "expert-weights-wrong",
        "expert-weights",
        always,
        "Experts hold values that are not the checkpoint's.",
        ("onnxruntime/mobius#324",),
    ),
    Kind(
        "expert-factor-wrong",
        "expert-factor",
        always,
        "What the experts give is multiplied by another number (routed_scaling_factor, residual_multiplier).",
    ),
    Kind(
        "expert-shared-gate-wrong",
        "expert-shared",
        always,
        "The shared expert is multiplied by the sigmoid of a number of its own for each token, which the package "
        "leaves out, or of which it leaves out the sigmoid.",
    ),
    Kind(
        "router-bias-lost",
        "weight",
        lambda d: (
            d.facts["likeness"] in ("zero", "absent") and d.facts["held"].endswith((".gate.bias", ".router.bias"))
        ),
        "The router adds a bias to its scores, which is left out or zero: it was skipped when weights were loaded.",
        ("onnxruntime/mobius#414",),
    ),
    Kind(
        "router-weight-wrong",
        "weight",
        lambda d: d.facts["held"].endswith((".mlp.gate.weight", ".mlp.gate.bias", ".router.weight", ".router.bias")),
        "The router's own weight is not the checkpoint's.",
        ("onnxruntime/mobius#414",),
    ),
)
