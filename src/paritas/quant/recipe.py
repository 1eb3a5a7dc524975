"""What a package stores its matrices as: ``--dtype`` and ``--quant`` as one frozen value."""

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paritas.errors import ParitasError
from paritas.weights import Blocks, Float, Method, Storage

BITS: Mapping[str, int] = {"int4": 4, "int8": 8}
_BLOCKS = (16, 32, 64, 128)
_LEVELS = (0, 1, 4)
_TABLES = ("lm_head", "embed_tokens")


@dataclass(frozen=True)
class Recipe:
    """How the matrices of a package are stored.

    Attributes:
        dtype: ``fp32``, ``fp16``, ``bf16``, ``int8`` or ``int4``.
        matrices: how a matrix is stored.
        keep8, keep32: patterns of matrices that are stored in 8 bits, or as they are.
        chosen: matrices by name for which something else was chosen.
    """

    dtype: str = "fp32"
    matrices: Storage = Float.FP32
    keep8: tuple[str, ...] = ()
    keep32: tuple[str, ...] = ()
    chosen: Mapping[str, Storage] = field(default_factory=dict[str, Storage])

    def storage(self, name: str, shape: tuple[int, ...]) -> Storage:
        """How the matrix ``name`` is stored. What is no larger than a block has nothing to gain from integers."""
        if name in self.chosen:
            return self.chosen[name]
        if not isinstance(self.matrices, Blocks):
            return self.matrices
        if min(shape) < self.matrices.block or _named(name, self.keep32):
            return Float.FP32
        return replace(self.matrices, bits=8) if _named(name, self.keep8) else self.matrices

    def with_tied_head(self) -> "Recipe":
        """The same for a model whose head is its embedding: what is said of one is said of the table."""
        grown = {
            key: (*patterns, *_TABLES) if set(_TABLES) & set(patterns) else patterns
            for key, patterns in (("keep8", self.keep8), ("keep32", self.keep32))
        }
        return replace(self, **grown)

    def choosing(self, chosen: Mapping[str, Storage]) -> "Recipe":
        """The same with something else for some matrices."""
        return replace(self, chosen={**self.chosen, **chosen})

    def with_narrow_activations(self) -> "Recipe":
        """The same for a device on which activations beside integers are fp16, as scales then have to be."""
        if not isinstance(self.matrices, Blocks):
            return self
        return replace(self, matrices=replace(self.matrices, scales=Float.FP16))

    @property
    def activations(self) -> Float:
        """What the graph computes in."""
        return self.matrices.scales if isinstance(self.matrices, Blocks) else self.matrices

    def check_integers(self) -> None:
        """Refuse a recipe that has no bits to choose.

        Raises:
            ParitasError: ``quant-wrong``.
        """
        if not isinstance(self.matrices, Blocks):
            raise _wrong(f"a budget chooses bits of integers, and {self.dtype} has none", "Use it with --dtype int4.")

    def check_names(self, matrices: Iterable[str]) -> None:
        """Refuse a pattern that no matrix has.

        Raises:
            ParitasError: ``quant-wrong``.
        """
        names = list(matrices)
        tied = set(_TABLES) if any(_named(name, ("embed_tokens",)) for name in names) else set[str]()
        for pattern in {*self.keep8, *self.keep32} - tied:
            if not any(_named(name, (pattern,)) for name in names):
                raise _wrong(f"no matrix is called {pattern!r}", f"There are, for example, {', '.join(names[-3:])}.")

    def __str__(self) -> str:
        kept = [f"{', '.join(p)} in {w}" for p, w in ((self.keep8, "int8"), (self.keep32, "fp32")) if p]
        return "; ".join([str(self.matrices), *kept])


def recipe(dtype: str, quant: str | None = None) -> Recipe:
    """The recipe that the words of a command line ask for.

    Args:
        dtype: one of the five.
        quant: ``key=value,key=value``: see :class:`~paritas.weights.Blocks`, and ``keep8``, ``keep32`` with names
            joined by ``+``.

    Raises:
        ParitasError: ``quant-wrong``, naming the word and what is known.
    """
    if dtype not in BITS:
        if quant:
            raise _wrong(f"--quant is for integers, not for {dtype}", "Use it with --dtype int4 or --dtype int8.")
        return Recipe(dtype, Float(dtype))
    pairs = [_pair(word) for word in quant.split(",")] if quant else []
    values = dict(pairs)
    if len(values) < len(pairs):
        raise _wrong(f"{quant!r} says a key twice", "Say each key once; names of matrices are joined by +.")
    kept = {key: values.pop(key) for key in ("keep8", "keep32") if key in values}
    bits = values.pop("bits", BITS[dtype])
    if bits != BITS[dtype]:
        raise _wrong(f"bits={bits} is not {dtype}", f"Use --dtype int{bits}, or leave bits out.")
    return Recipe(dtype, Blocks(bits, **{**_DEFAULTS[bits], **values}), **kept)


_DEFAULTS: Mapping[int, Mapping[str, Any]] = {
    4: {"block": 32, "symmetric": False, "method": Method.SEARCH, "accuracy": 4},
    8: {"block": 32, "symmetric": True, "method": Method.RTN, "accuracy": 4},
}


def _pair(word: str) -> tuple[str, Any]:
    name, equals, value = word.strip().partition("=")
    key = _SPELLINGS.get(name.strip().lower().replace("-", "_"))
    if key is None or not equals:
        close = difflib.get_close_matches(name, _SPELLINGS, n=1)
        known = f"--quant takes {', '.join(_READ)}, each as key=value"
        raise _wrong(f"--quant does not know {word!r}", f"Did you mean {close[0]}? {known}." if close else f"{known}.")
    return key, _READ[key](key, value.strip().lower())


def _number(known: tuple[int, ...]) -> Callable[[str, str], int]:
    def read(key: str, value: str) -> int:
        if value.isdecimal() and int(value) in known:
            return int(value)
        raise _wrong(f"{key}={value}", f"{key} is one of {', '.join(map(str, known))}.")

    return read


def _yes(key: str, value: str) -> bool:
    words = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
    if value not in words:
        raise _wrong(f"{key}={value}", f"{key} is yes or no.")
    return words[value]


def _method(key: str, value: str) -> Method:
    words = {"rtn": Method.RTN, "default": Method.RTN, "search": Method.SEARCH, "k_quant": Method.SEARCH}
    if (word := value.replace("-", "_")) not in words:
        raise _wrong(f"{key}={value}", f"{key} is {' or '.join(Method)}.")
    return words[word]


def _names(key: str, value: str) -> tuple[str, ...]:
    return tuple(name for name in value.split("+") if name)


_READ: Mapping[str, Callable[[str, str], Any]] = {
    "bits": _number((4, 8)),
    "block": _number(_BLOCKS),
    "symmetric": _yes,
    "method": _method,
    "accuracy": _number(_LEVELS),
    "keep8": _names,
    "keep32": _names,
}
_SPELLINGS = {
    **{key: key for key in _READ},
    "block_size": "block",
    "group_size": "block",
    "is_symmetric": "symmetric",
    "sym": "symmetric",
    "algo": "method",
    "algo_config": "method",
    "accuracy_level": "accuracy",
    "keep_8": "keep8",
}


def _named(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a pattern is the name, a module on its path, or matches it."""
    path = name.lower().split(".")
    return any(pattern in path or fnmatch.fnmatchcase(name.lower(), pattern) for pattern in patterns)


def _wrong(fact: str, hint: str) -> ParitasError:
    return ParitasError("quant-wrong", fact, place="--quant", hint=hint)
