"""What fp32 numbers are after they went through a narrower type and back."""

from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]


def _as_bf16(rows: Rows) -> Rows:
    return rows.astype(ml_dtypes.bfloat16).astype(np.float32)


def _as_fp16(rows: Rows) -> Rows:
    with np.errstate(over="ignore"):
        return rows.astype(np.float16).astype(np.float32)


def _same(rows: Rows) -> Rows:
    return rows


CASTS: Mapping[str, Callable[[Rows], Rows]] = {"fp32": _same, "fp16": _as_fp16, "bf16": _as_bf16}
