"""What a decoder computes with, read off the package and off the live reference, and each written into the other."""

from collections.abc import Callable, Iterator

from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.parameters.absent import absent_differences
from paritas.diagnose.parameters.activation import activation_differences
from paritas.diagnose.parameters.embedding import embedding_differences
from paritas.diagnose.parameters.logits import logit_differences
from paritas.diagnose.parameters.masks import mask_differences
from paritas.diagnose.parameters.norms import norm_differences
from paritas.diagnose.parameters.positions import position_differences
from paritas.diagnose.parameters.qk_norm import qk_norm_differences
from paritas.diagnose.parameters.residual import residual_differences
from paritas.diagnose.parameters.rope import rope_differences
from paritas.diagnose.parameters.scores import score_differences
from paritas.diagnose.parameters.weights import weight_differences
from paritas.diagnose.parameters.written import written_differences
from paritas.diagnose.parameters.written_rope import written_rope_differences

Reader = Callable[[Case], Iterator[Difference]]
READERS: tuple[Reader, ...] = (
    weight_differences,
    absent_differences,
    embedding_differences,
    norm_differences,
    rope_differences,
    qk_norm_differences,
    score_differences,
    mask_differences,
    written_differences,
    written_rope_differences,
    position_differences,
    activation_differences,
    residual_differences,
    logit_differences,
)


def differences(case: Case) -> tuple[Difference, ...]:
    """Every parameter whose value in the package is not the reference's."""
    return tuple(found for read in READERS for found in read(case))
