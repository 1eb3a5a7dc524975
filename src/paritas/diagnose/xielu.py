"""xIELU (arXiv 2411.13010), whose numbers each layer learns: read off a line, and written into a graph."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paritas.diagnose.edit import Edit

Line = NDArray[np.float32]
_CLOSE = 1e-5
_EDGE = -1e-6  # below it the exponential is taken, as in the paper's own code


@dataclass(frozen=True)
class Xielu:
    """``square x**2 + linear x`` above zero, ``(expm1(x) - x) negative + linear x`` below.

    Attributes:
        square, negative, linear: its numbers.
    """

    square: float
    negative: float
    linear: float

    def __str__(self) -> str:
        return f"xIELU of {self.square:.6g}, {self.negative:.6g} and {self.linear:.6g}"

    def write(self, edit: Edit, x: str) -> str:
        """The value that it makes of ``x``."""

        def op(operator: str, *inputs: str) -> str:
            return edit.insert_node(operator, list(inputs))

        def number(value: float) -> str:
            return edit.add_initializer("xielu", np.array(value, np.float32))

        half = op("Tanh", op("Mul", op("Min", x, number(_EDGE)), number(0.5)))
        grown = op("Div", op("Add", half, half), op("Sub", number(1.0), half))  # expm1, exact near zero
        below = op("Mul", op("Sub", grown, x), number(self.negative))
        above = op("Mul", op("Mul", x, x), number(self.square))
        bent = op("Where", op("Greater", x, number(0.0)), above, below)
        return op("Add", bent, op("Mul", x, number(self.linear)))


def xielu_of(line: Line, values: Line) -> Xielu | None:
    """The numbers with which it makes ``values`` of ``line``; None if none do."""
    x, y = line.astype(np.float64), values.astype(np.float64)
    up, down = x > 0, x < 0
    columns = np.stack([np.where(up, x * x, 0), np.where(down, np.expm1(x) - x, 0), x], axis=1)
    numbers, *_ = np.linalg.lstsq(columns, y, rcond=None)
    if np.abs(columns @ numbers - y).max() > _CLOSE * np.abs(y).max():
        return None
    return Xielu(*(float(each) for each in numbers))
