"""A tensor's contract, as either dialect writes it, and when two of them are of one tensor."""

from dataclasses import dataclass
from typing import Any

from paritas.lint.fault import Values, mapping

_OTHER = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
FREE = "Any"


@dataclass(frozen=True)
class Contract:
    """What a value is.

    Attributes:
        dtype: one word for each type.
        rank: number of sizes.
        shape: sizes: a number, a symbol, or None for a free one; all free where none are given.
        rows: the size that is the batch; None if requests share the value.
        layout: its kind, as written.
    """

    dtype: str
    rank: int
    shape: tuple[int | str | None, ...]
    rows: int | None
    layout: str

    @classmethod
    def of(cls, values: Values) -> "Contract":
        """As written."""
        shape: list[Any] | None = values.get("shape")
        sizes = tuple(None if size == FREE else size for size in shape) if shape is not None else None
        rank = values["rank"] if sizes is None else len(sizes)
        layout: Values = values.get("batch_layout") or {"kind": "shared"}
        rows = layout.get("axis") if layout["kind"] in ("request_aligned", "request_expanded") else None
        dtype = str(values["dtype"])
        return cls(_OTHER.get(dtype, dtype), rank, sizes if sizes is not None else (None,) * rank, rows, layout["kind"])

    @property
    def scalar(self) -> bool:
        """Whether it is one number for all requests: ``[]`` or ``[1]``."""
        return self.shape in ((), (1,))

    @property
    def flag_of_rows(self) -> bool:
        """Whether it is one number, or one a row."""
        return self.rank == 0 or (self.rank == 1 and (self.rows == 0 or self.shape == (1,)))

    def against(self, other: "Contract") -> str | None:
        """Why no tensor is both; None if one can be. Symbols are not compared: the runtime does that."""
        if self.dtype != other.dtype:
            return f"{self.dtype} against {other.dtype}"
        if self.rank != other.rank:
            return f"{self} against {other}"
        pairs = zip(self.shape, other.shape, strict=True)
        if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
            return f"{self} against {other}"
        return None

    def __str__(self) -> str:
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.dtype}[{sizes}]"


def own_faults(values: Values) -> list[tuple[str, str]]:
    """What is wrong in a contract by itself, and what to do."""
    found: list[tuple[str, str]] = []
    shape, rank, layout = values.get("shape"), values.get("rank"), mapping(values, "batch_layout")
    if shape is not None and rank is not None and len(shape) != rank:
        found.append((f"rank is {rank}, and shape has {len(shape)} sizes", "Make them agree."))
    sizes = len(shape) if shape is not None else rank
    if layout.get("axis") is not None and sizes is not None and layout["axis"] >= sizes:
        found.append((f"the batch is at axis {layout['axis']}, and there are {sizes} sizes", "Name one of them."))
    if layout.get("factor") == 0:
        found.append(("each request owns no rows", "Write a factor of 1 or more."))
    return found


BOOL = Contract("bool", 0, (), None, "shared")
