"""What a decoder computes with, read off the package and off the live reference, and each written into the other."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.norm_places import norms_in_their_places
from paritas.diagnose.parameters.absent import absent_differences
from paritas.diagnose.parameters.activation import activation_differences
from paritas.diagnose.parameters.caches import cache_differences
from paritas.diagnose.parameters.clipping import clip_differences
from paritas.diagnose.parameters.embedding import embedding_differences
from paritas.diagnose.parameters.kv_source import kv_source_differences
from paritas.diagnose.parameters.logit_function import logit_function_differences
from paritas.diagnose.parameters.logits import logit_differences
from paritas.diagnose.parameters.masks import mask_differences
from paritas.diagnose.parameters.mixture import mixture_differences
from paritas.diagnose.parameters.norms import norm_differences
from paritas.diagnose.parameters.packed import packed_differences
from paritas.diagnose.parameters.per_layer_inputs import per_layer_input_differences
from paritas.diagnose.parameters.positions import position_differences
from paritas.diagnose.parameters.qk_norm import qk_norm_differences
from paritas.diagnose.parameters.residual import residual_differences
from paritas.diagnose.parameters.rope import rope_differences
from paritas.diagnose.parameters.rope_by_length import rope_by_length_differences
from paritas.diagnose.parameters.rounded_values import rounded_value_differences
from paritas.diagnose.parameters.scores import score_differences
from paritas.diagnose.parameters.sparsity import sparsity_differences
from paritas.diagnose.parameters.value_norm import value_norm_differences
from paritas.diagnose.parameters.weights import weight_differences
from paritas.diagnose.parameters.wiring import wiring_differences
from paritas.diagnose.parameters.written import written_differences
from paritas.diagnose.parameters.written_rope import written_rope_differences

Reader = Callable[[Case], Iterator[Difference]]
READERS: tuple[Reader, ...] = (
    weight_differences,
    packed_differences,
    absent_differences,
    embedding_differences,
    per_layer_input_differences,
    norm_differences,
    rope_differences,
    rope_by_length_differences,
    qk_norm_differences,
    value_norm_differences,
    score_differences,
    clip_differences,
    mask_differences,
    written_differences,
    written_rope_differences,
    position_differences,
    cache_differences,
    kv_source_differences,
    rounded_value_differences,
    activation_differences,
    sparsity_differences,
    mixture_differences,
    residual_differences,
    wiring_differences,
    logit_differences,
    logit_function_differences,
)


def differences(case: Case) -> tuple[Difference, ...]:
    """Every parameter whose value in the package is not the reference's."""
    seen = replace(case, slots=norms_in_their_places(case))
    return tuple(found for read in READERS for found in read(seen))
