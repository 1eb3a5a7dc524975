"""Kinds of wrong weights."""

from collections.abc import Callable

from paritas.diagnose.difference import Difference
from paritas.diagnose.kinds.base import Kind


def _is(*words: str, norm: bool | None = None) -> Callable[[Difference], bool]:
    """A weight that was recognised as one of ``words``; of a norm, or not of one."""

    def applies(difference: Difference) -> bool:
        facts = difference.facts
        return facts["likeness"] in words and norm in (None, facts["is_norm"])

    return applies


KINDS = (
    Kind(
        "norm-offset-rounded",
        "weight",
        _is("offset-rounded"),
        "The exporter formed 1 + weight in the checkpoint's short type before it widened the sum: most of the weight's "
        "bits are lost. Greedy tokens stay the same.",
        ("microsoft/onnxruntime-genai#2939",),
    ),
    Kind(
        "norm-offset-missing",
        "weight",
        _is("offset-missing"),
        "The model multiplies by 1 + weight (Gemma's norms); the exporter wrote the weight as it is stored.",
    ),
    Kind(
        "norm-offset-unwanted",
        "weight",
        _is("offset-unwanted", "offset-twice"),
        "The exporter added 1 to a norm's weight, as for Gemma, where the model adds nothing or the weight has it.",
    ),
    Kind(
        "final-norm-wrong",
        "weight",
        lambda d: d.facts["held"] == "model.norm.weight" and d.facts["likeness"] in ("another-layer", "another-tensor"),
        "The final norm was taken from another place of the checkpoint (a multimodal or PEFT wrapper moves it).",
        ("microsoft/onnxruntime-genai#1687", "microsoft/onnxruntime-genai#1446"),
    ),
    Kind(
        "norm-weight-lost",
        "weight",
        _is("constant", "zero", "unrelated", norm=True),
        "A norm has one number everywhere, or numbers that are nobody's: its weight was not found and an initial value "
        "was left in its place.",
        ("onnxruntime/mobius phimoe", "onnxruntime/mobius#414"),
    ),
    Kind(
        "qk-norms-swapped",
        "weight",
        lambda d: (
            d.facts["likeness"] == "another-tensor"
            and {"q_norm", "k_norm"} == {str(d.facts["held"]).split(".")[-2], str(d.facts["tensor"]).split(".")[-2]}
        ),
        "The norms of queries and keys hold each other's weights.",
    ),
    Kind(
        "norms-exchanged",
        "weight",
        lambda d: d.facts["is_norm"] and d.facts.get("exchanged", False) and d.facts["likeness"] == "another-tensor",
        "Two norms of a layer hold each other's weights: the one behind attention stands behind the MLP, or the one "
        "before it, and the other way round.",
        ("onnxruntime/mobius#474",),
    ),
    Kind(
        "gate-up-swapped",
        "weight",
        lambda d: (
            d.facts["likeness"] == "another-tensor"
            and {"gate_proj", "up_proj"} == {str(d.facts["held"]).split(".")[-2], str(d.facts["tensor"]).split(".")[-2]}
        ),
        "The activation is applied to the up projection: the two halves of a gated MLP changed places, by name or in "
        "the order in which they are packed.",
        ("ml-explore/mlx-lm#767", "flashinfer-ai/flashinfer#4130"),
    ),
    Kind(
        "bias-subtracted",
        "weight",
        lambda d: d.facts["likeness"] == "negated" and str(d.facts["held"]).endswith(".bias"),
        "A bias is taken away where the model adds it, or is stored with the other sign.",
    ),
    Kind(
        "bias-misplaced",
        "weight",
        lambda d: d.facts["likeness"] in ("another-tensor", "another-layer") and str(d.facts["held"]).endswith(".bias"),
        "The bias of one projection stands behind another.",
        ("microsoft/onnxruntime-genai#1059",),
    ),
    Kind(
        "head-tied-wrongly",
        "weight",
        lambda d: (
            d.facts["likeness"] == "another-tensor"
            and d.facts["held"] == "lm_head.weight"
            and "embed" in str(d.facts["tensor"])
        ),
        "The head uses the embedding's table, though the checkpoint has a head of its own.",
        ("microsoft/onnxruntime-genai#2237", "onnxruntime/mobius#154"),
    ),
    Kind(
        "weight-of-another-layer",
        "weight",
        _is("another-layer"),
        "A layer has the weights of another layer.",
    ),
    Kind(
        "weight-of-another-tensor",
        "weight",
        _is("another-tensor"),
        "A tensor of the checkpoint stands in the place of another.",
    ),
    Kind(
        "weight-of-another-part",
        "weight",
        _is("another-part"),
        "A packed projection was taken apart at the wrong rows: what the attention takes as keys are the rows of "
        "values, or the like.",
        ("ml-explore/mlx-lm#767",),
    ),
    Kind(
        "rotary-rows-interleaved",
        "weight",
        _is("interleaved", "uninterleaved"),
        "The rows of queries and keys are in the order of the other pairing of RoPE (GGUF keeps rotated pairs side by "
        "side): the permutation was not undone, or done twice, or with the wrong number of heads.",
        ("ggml-org/llama.cpp#3364", "onnxruntime/mobius#396"),
    ),
    Kind(
        "weight-blocks-reordered",
        "weight",
        lambda d: d.facts["likeness"] == "heads-moved" and "attn" not in d.facts["held"],
        "Blocks of rows of one projection lie in another order: the parts of a packed projection (gates, branches) "
        "changed places.",
        ("flashinfer-ai/flashinfer#4130",),
    ),
    Kind(
        "heads-reordered",
        "weight",
        _is("heads-moved"),
        "Whole heads of a projection lie in another order than the heads that they belong to.",
        ("ggml-org/llama.cpp#3364",),
    ),
    Kind(
        "weight-rows-permuted",
        "weight",
        _is("permuted"),
        "The rows of a matrix are the checkpoint's, in another order.",
    ),
    Kind(
        "weight-columns-permuted",
        "weight",
        _is("columns-permuted"),
        "A projection takes its inputs in another order: of o_proj, what attention gives lies by head where it takes "
        "it by number, or the other way round.",
        ("ggml-org/llama.cpp#3364",),
    ),
    Kind(
        "weight-rows-moved",
        "weight",
        _is("rows-moved"),
        "Rows of a table stand in the places of others: a token was removed or added in the middle, and all that "
        "comes behind it moved.",
    ),
    Kind(
        "weight-misread",
        "weight",
        _is("misread"),
        "A weight's values begin at a wrong place: an offset into a file of weights that is not the header's.",
    ),
    Kind(
        "weight-row-zero",
        "weight",
        _is("rows-zero"),
        "Rows of a table hold zeros: padding of the vocabulary, or a resize after which they were not filled.",
    ),
    Kind(
        "weight-row-differs",
        "weight",
        _is("rows-differ"),
        "A few rows are not the checkpoint's: tokens were added, trained or overwritten.",
    ),
    Kind(
        "weight-zeroed",
        "weight",
        _is("zero", norm=False),
        "A weight was serialised as zeros: right name, right shape, dead values.",
        ("onnxruntime/mobius#351",),
    ),
    Kind(
        "weight-constant",
        "weight",
        _is("constant", norm=False),
        "A weight holds one number everywhere: an initial value that nothing replaced.",
        ("onnxruntime/mobius phimoe",),
    ),
    Kind(
        "weight-noise",
        "weight",
        _is("unrelated", norm=False),
        "A weight holds numbers that are none of the checkpoint's: it was never loaded, and kept its initial values.",
        ("onnxruntime/mobius#414",),
    ),
    Kind(
        "weight-not-finite",
        "weight",
        _is("not-finite"),
        "A weight holds NaN or Inf: it overflowed in a short type.",
    ),
    Kind(
        "weight-rounded",
        "weight",
        _is("rounded"),
        "Weights went through a shorter type than the package's: the checkpoint was loaded in it.",
        ("document 000 of transformers 4 -> 5",),
    ),
    Kind(
        "weight-beyond-its-bits",
        "weight",
        _is("beyond-its-bits"),
        "Integers are not the nearest to the checkpoint's weights that their own scales allow: a wrong scale or zero "
        "point, another order of the blocks, or another checkpoint.",
    ),
    Kind(
        "weight-scaled",
        "weight",
        _is("scaled"),
        "A weight is multiplied by a number that the graph does not take back elsewhere.",
    ),
    Kind(
        "weight-negated",
        "weight",
        _is("negated"),
        "A weight has the other sign.",
    ),
    Kind(
        "weight-transposed",
        "weight",
        _is("transposed"),
        "A square matrix lies transposed: nothing but its values can tell.",
    ),
    Kind(
        "weight-absent",
        "weight",
        _is("absent"),
        "A tensor that the reference computes with is nowhere in the graph.",
        ("onnxruntime/mobius#414",),
    ),
    Kind(
        "weight-differs",
        "weight",
        _is("near"),
        "A weight is near the checkpoint's and not equal: another checkpoint, a merged adapter, or a computation in a "
        "shorter type.",
    ),
    Kind(
        "bias-missing",
        "bias",
        lambda d: d.package is None,
        "The checkpoint has a bias that the exporter did not write: the family's usual layers have none.",
        ("microsoft/onnxruntime-genai#432", "onnxruntime/mobius#396"),
    ),
    Kind(
        "bias-unwanted",
        "bias",
        lambda d: d.package is not None,
        "The graph adds a bias where the reference has none.",
        ("microsoft/onnxruntime-genai#1059",),
    ),
)
