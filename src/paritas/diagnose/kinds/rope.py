"""Kinds of wrong rotations and positions."""

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from paritas.diagnose.difference import Difference
from paritas.diagnose.kinds.base import Kind, always
from paritas.diagnose.parameters.rope_by_length import ByLength
from paritas.diagnose.parameters.tables import Table

_CLOSE = 2e-3  # of estimates of theta and factor


def _tables(difference: Difference) -> tuple[Table, Table]:
    return difference.package, difference.reference


def _is_of_other_layer(difference: Difference) -> bool:
    return difference.facts["others"](difference.package) is not None


def _is_rounded(difference: Difference) -> bool:
    got, wanted = _tables(difference)
    if got.cos.shape != wanted.cos.shape:
        return False
    for kind in (np.float16, ml_dtypes.bfloat16):
        rounded = (wanted.cos.astype(kind).astype(np.float32), wanted.sin.astype(kind).astype(np.float32))
        apart = max(float(np.abs(a - b).max()) for a, b in zip((got.cos, got.sin), rounded, strict=True))
        if apart <= float(np.abs(wanted.cos - rounded[0]).max()) / 4:
            return True
    return False


def _wraps(difference: Difference) -> bool:
    """Right up to a position, and from the beginning again then."""
    got, wanted = _tables(difference)
    if got.cos.shape != wanted.cos.shape:
        return False
    wrong = np.flatnonzero((np.abs(got.cos - wanted.cos) > 1e-4).any(axis=1))
    if not len(wrong) or wrong[0] < 2:
        return False
    again = np.arange(len(got.cos)) % int(wrong[0])
    return bool(np.abs(got.cos - got.cos[again]).max() < 1e-4 and np.abs(got.sin - got.sin[again]).max() < 1e-4)


def _ends(difference: Difference) -> bool:
    """Right up to a position, and one row over and over then."""
    got, wanted = _tables(difference)
    if got.cos.shape != wanted.cos.shape:
        return False
    wrong = np.flatnonzero((np.abs(got.cos - wanted.cos) > 1e-4).any(axis=1))
    if not len(wrong) or wrong[0] < 2:
        return False
    return bool(np.ptp(got.cos[wrong[0] :], axis=0).max() < 1e-6)


def _pairs_differ(difference: Difference) -> bool:
    got, wanted = _tables(difference)
    return got.cos.shape[1] != wanted.cos.shape[1]


def _amplitude_only(difference: Difference) -> bool:
    got, wanted = _tables(difference)
    same = got.cos.shape == wanted.cos.shape and np.allclose(got.angles(), wanted.angles(), rtol=1e-4)
    return bool(same) and abs(got.amplitude() / wanted.amplitude() - 1) > 1e-4


def _calls(difference: Difference) -> tuple[ByLength | None, ByLength]:
    return difference.package, difference.reference


def _is_always_near(difference: Difference) -> bool:
    got, wanted = _calls(difference)
    return got is not None and got.near.turns_like(wanted.near) and got.far.turns_like(wanted.near)


def _is_always_far(difference: Difference) -> bool:
    got, wanted = _calls(difference)
    return got is not None and got.near.turns_like(wanted.far) and got.far.turns_like(wanted.far)


def _changes_elsewhere(difference: Difference) -> bool:
    """Right in the shortest calls and in the longest, but not on both sides of the length at which it should change."""
    facts = difference.facts
    later = facts["ends_right"] and _is_always_near(difference)
    return bool(later or (facts["begins_right"] and _is_always_far(difference)))


def _ratios(difference: Difference) -> NDArray[np.float64]:
    """Package's inverse frequencies over the reference's; pairs that stand still in both are alike."""
    got, wanted = (table.angles().astype(np.float64) for table in _tables(difference))
    with np.errstate(divide="ignore"):
        return np.divide(got, wanted, out=np.ones_like(got), where=(wanted != 0) | (got != 0))


def _factor(difference: Difference) -> float | None:
    """One factor between all frequencies."""
    ratios = _ratios(difference)
    return float(ratios.mean()) if np.ptp(ratios) < _CLOSE * abs(float(ratios.mean())) else None


def _line(difference: Difference, side: Table) -> bool:
    """Whether frequencies are those of a theta and a factor alone."""
    logs = np.log(np.maximum(np.abs(side.angles().astype(np.float64)), 1e-30))
    x = np.arange(len(logs))
    slope, offset = np.polyfit(x, logs, 1)
    return bool(np.abs(slope * x + offset - logs).max() < 1e-3)


def _factor_dropped(difference: Difference) -> bool:
    factor = _factor(difference)
    return factor is not None and factor > 1 and abs(float(difference.package.angles()[0]) - 1) < _CLOSE


def _factor_extra(difference: Difference) -> bool:
    factor = _factor(difference)
    return factor is not None and factor < 1 and abs(float(difference.reference.angles()[0]) - 1) < _CLOSE


def _bands_dropped(difference: Difference) -> bool:
    got, wanted = _tables(difference)
    return _line(difference, got) and not _line(difference, wanted)


def _theta(difference: Difference) -> bool:
    got, wanted = _tables(difference)
    return _line(difference, got) and _line(difference, wanted) and _factor(difference) is None


KINDS = (
    Kind(
        "rope-dimension-wrong",
        "rope-table",
        _pairs_differ,
        "Another number of dimensions is rotated: partial_rotary_factor was ignored, applied twice, or taken for a "
        "proportional one, which counts frequencies over the whole head.",
        ("vllm-project/vllm#16904", "microsoft/onnxruntime-genai#244"),
    ),
    Kind(
        "rope-of-another-layer",
        "rope-table",
        _is_of_other_layer,
        "Layers rotate by what belongs to another kind of layer: one table was made for all of them.",
        ("microsoft/onnxruntime-genai#2277", "microsoft/onnxruntime-genai#2884"),
    ),
    Kind(
        "rope-table-rounded",
        "rope-table",
        _is_rounded,
        "The table of cosines and sines was made in a short type.",
        ("huggingface/transformers#29285", "huggingface/candle#3698"),
    ),
    Kind(
        "rope-table-wraps",
        "rope-table",
        _wraps,
        "The table begins again after a number of positions: it was made for that many.",
        ("neuralmagic/sparseml#1826",),
    ),
    Kind(
        "rope-table-ends",
        "rope-table",
        _ends,
        "The table stands still after a number of positions: it was made for that many.",
        ("neuralmagic/sparseml#1826",),
    ),
    Kind(
        "rope-attention-factor-wrong",
        "rope-table",
        _amplitude_only,
        "Cosines and sines are multiplied by another attention factor (YaRN's or LongRoPE's mscale).",
        ("microsoft/onnxruntime-genai#2076",),
    ),
    Kind(
        "rope-factor-ignored",
        "rope-table",
        _factor_dropped,
        "Linear scaling of positions is ignored: position 0 is right, and the error grows from there.",
        ("microsoft/onnxruntime-genai#2142", "microsoft/onnxruntime-genai#2311"),
    ),
    Kind(
        "rope-factor-inherited",
        "rope-table",
        _factor_extra,
        "Positions are divided by a factor that these layers do not have: local layers inherited the scaling of the "
        "global ones, or a default was applied.",
        ("microsoft/onnxruntime-genai#2277", "microsoft/onnxruntime-genai#2884"),
    ),
    Kind(
        "rope-factor-wrong",
        "rope-table",
        lambda d: _factor(d) is not None,
        "Positions are scaled by another factor.",
        ("microsoft/onnxruntime-genai#2142",),
    ),
    Kind(
        "rope-bands-ignored",
        "rope-table",
        _bands_dropped,
        "The model scales its frequencies by band (Llama 3, YaRN, LongRoPE); the package has one line of them.",
        ("ggml-org/llama.cpp#8676", "microsoft/onnxruntime-genai#2076"),
    ),
    Kind(
        "rope-theta-wrong",
        "rope-table",
        _theta,
        "The base of the frequencies was read from another key, or is a default.",
        ("microsoft/onnxruntime-genai#2076",),
    ),
    Kind(
        "rope-scaling-wrong",
        "rope-table",
        always,
        "The frequencies are scaled otherwise.",
        ("onnxruntime/mobius#293", "microsoft/onnxruntime-genai#954"),
    ),
    Kind(
        "rope-switch-elsewhere",
        "rope-by-length",
        _changes_elsewhere,
        "Long calls are rotated otherwise than short ones from another length on: the original context was read from "
        "another key, or the tokens before the call are not counted.",
        ("microsoft/onnxruntime-genai#954",),
    ),
    Kind(
        "rope-switch-ignored",
        "rope-by-length",
        _is_always_near,
        "Calls beyond the original context are rotated as those within it: LongRoPE's short factors alone, or dynamic "
        "scaling dropped.",
        ("microsoft/onnxruntime-genai#954",),
    ),
    Kind(
        "rope-long-factors-everywhere",
        "rope-by-length",
        _is_always_far,
        "Calls within the original context are rotated as those beyond it: LongRoPE's long factors alone.",
        ("microsoft/onnxruntime-genai#954",),
    ),
    Kind(
        "rope-switch-irregular",
        "rope-by-length",
        always,
        "Calls of some lengths are rotated otherwise than the model rotates them; in others it is right.",
    ),
    Kind(
        "rope-pairing-wrong",
        "rope-pairing",
        always,
        "The operator pairs neighbouring dimensions where the model pairs those half a head apart, or the reverse.",
        ("ggml-org/llama.cpp#3018", "jzhang38/TinyLlama#24"),
    ),
    Kind(
        "rope-missing",
        "rope-missing",
        always,
        "Layers that rotate in the model do not in the package: NoPE layers were inverted, or do_rotary was not set.",
        ("onnxruntime/mobius#233",),
    ),
    Kind(
        "rope-on-nope-layer",
        "rope-unwanted",
        always,
        "Layers without positions (NoPE) are rotated.",
        ("onnxruntime/mobius#177", "onnxruntime/mobius#233"),
    ),
    Kind(
        "rope-on-values",
        "rope-on-values",
        always,
        "Values are rotated as queries and keys are.",
    ),
    Kind(
        "positions-of-queries-and-keys-differ",
        "positions",
        lambda d: bool(d.facts["apart"]),
        "Queries are put at other positions than their own keys.",
    ),
    Kind(
        "positions-forget-the-past",
        "positions",
        lambda d: d.facts["past"] > 0 and not d.facts["padded"] and d.package[0] == 0,
        "Positions start again at 0 in every call: what is in the cache is not counted.",
        ("sonos/torch-to-nnef#217",),
    ),
    Kind(
        "positions-ignore-padding",
        "positions",
        lambda d: bool(d.facts["padded"]),
        "Positions count the padding before a text: only padded rows are wrong.",
        ("huggingface/optimum#1381", "huggingface/optimum#877"),
    ),
    Kind(
        "positions-wrong",
        "positions",
        always,
        "Tokens are put at other positions.",
        ("sonos/torch-to-nnef#217",),
    ),
)
