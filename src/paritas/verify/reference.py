"""The reference: transformers' own class on the checkpoint, fp32, eager, never patched, never ``generate``.

It is loaded once. The other ways in which it is asked (fp64, SDPA) are the same object, cast or switched by
transformers' own methods, so that a checkpoint that takes minutes to read (GGUF) is read once: bf16 -> fp32
-> fp64 loses nothing. Everything that is untyped here (torch, transformers) stays here.
"""

import functools
import importlib
import importlib.util
import inspect
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.errors import Invalid, ParitasError

_NEEDS = "pip install 'paritas[verify]'"


@dataclass(frozen=True)
class Facts:
    """What probes have to know about a model, from the reference's own text configuration.

    Attributes:
        vocab: logits a token.
        positions: the longest sequence it was made for; None if the configuration does not say.
        windows: its sliding windows in tokens, ascending; empty if every layer sees everything.
        eos: tokens that end a text.
    """

    vocab: int
    positions: int | None
    windows: tuple[int, ...]
    eos: frozenset[int]


class Reference:
    """transformers on a checkpoint.

    Args:
        path: a folder as transformers saves it, or a GGUF file.

    Raises:
        ParitasError: ``verify-needs-torch``, ``verify-needs-accelerate``.
        Invalid: ``reference-unloadable``; ``reference-incomplete`` if a weight is missing, unused or of
            another
            shape, since transformers would go on with random numbers in its place.
    """

    def __init__(self, path: Path) -> None:
        self._torch, transformers = require_torch()
        self._model = _load(transformers, self._torch, path)
        self._cache = _cache_name(self._model)
        self.class_name: str = type(self._model).__name__
        self.facts = _facts(self._model)

    def one_pass(self, ids: Sequence[int]) -> NDArray[np.floating[Any]]:
        """Logits ``[positions, vocab]`` of the whole sequence at once, in the arithmetic it is set to."""
        return self._call([list(ids)], None)[0][0]

    def steps(self, ids: Sequence[int], prefill: int) -> NDArray[np.floating[Any]]:
        """Logits ``[positions, vocab]``: the first ``prefill`` tokens at once, then one a call."""
        logits, cache = self._call([list(ids[:prefill])], None, keep=True)
        rows = [logits[0]]
        for token in ids[prefill:]:
            logits, cache = self._call([[token]], cache, keep=True)
            rows.append(logits[0])
        return np.concatenate(rows)

    def greedy(self, prompt: Sequence[int], count: int) -> tuple[tuple[int, ...], NDArray[np.floating[Any]]]:
        """Up to ``count`` greedy tokens, the last an eos if one came, and the logits that chose them.

        Returns:
            The tokens, and the logits ``[prompt + tokens - 1, vocab]`` of the prompt and of all of them but
            the last.
        """
        logits, cache = self._call([list(prompt)], None, keep=True)
        rows, tokens = [logits[0]], [int(logits[0, -1].argmax())]
        while len(tokens) < count and tokens[-1] not in self.facts.eos:
            logits, cache = self._call([[tokens[-1]]], cache, keep=True)
            rows.append(logits[0])
            tokens.append(int(logits[0, -1].argmax()))
        return tuple(tokens), np.concatenate(rows)

    @contextmanager
    def sdpa(self) -> Generator[None]:
        """Within, attention is torch's scaled_dot_product_attention.

        Raises:
            Invalid: ``reference-refused``: the class cannot.
        """
        with _refusals("SDPA"):
            self._model.set_attn_implementation("sdpa")
        try:
            if self._model.config._attn_implementation != "sdpa":
                raise Invalid("reference-refused", f"{self.class_name} has no SDPA attention")
            yield
        finally:
            self._model.set_attn_implementation("eager")

    def to_fp64(self) -> None:
        """From now on it computes in fp64 (as far as transformers does: norms and softmax stay fp32)."""
        self._model = self._model.double()

    def _call(self, ids: list[list[int]], cache: Any, keep: bool = False) -> tuple[NDArray[Any], Any]:
        arguments = {"input_ids": self._torch.tensor(ids), "use_cache": keep}
        if keep:
            arguments[self._cache] = cache
        with self._torch.inference_mode(), quiet(), _refusals("a forward pass"):
            output = self._model(**arguments)
        return output.logits.numpy(), output[self._cache] if keep else None


def require_torch() -> tuple[Any, Any]:
    """The modules torch and transformers.

    Raises:
        ParitasError: ``verify-needs-torch``.
    """
    try:
        return importlib.import_module("torch"), importlib.import_module("transformers")
    except ImportError as error:
        raise ParitasError(
            "verify-needs-torch",
            f"the reference is transformers, which needs torch: {error}",
            hint=_NEEDS,
        ) from error


def _load(transformers: Any, torch: Any, path: Path) -> Any:
    """The model, in fp32 and eager attention, from local files alone and with every weight in its place."""
    gguf = path.suffix == ".gguf"
    if gguf and importlib.util.find_spec("accelerate") is None:
        raise ParitasError(
            "verify-needs-accelerate", "transformers reads a GGUF file only with accelerate", hint=_NEEDS
        )
    where: dict[str, Any] = {"gguf_file": path.name} if gguf else {"use_safetensors": True}
    load: Callable[..., Any] = transformers.AutoModelForCausalLM.from_pretrained
    try:
        with quiet(), _no_gguf_bar() if gguf else nullcontext():
            model, info = load(
                str(path.parent if gguf else path),
                **where,
                dtype=torch.float32,
                attn_implementation="eager",
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except _load_errors() as error:
        raise Invalid(
            "reference-unloadable",
            f"transformers cannot load the checkpoint: {_first_line(error)}",
            place=path.name,
            hint="Load it with transformers' from_pretrained to see its own report.",
        ) from error
    _check_complete(info, path)
    return model.eval()


def _load_errors() -> tuple[type[Exception], ...]:
    """What from_pretrained raises for a checkpoint that is not whole or not known."""
    broken: type[Exception] = importlib.import_module("safetensors").SafetensorError
    return (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError, broken)


def _check_complete(info: dict[str, Any], path: Path) -> None:
    wrong = [
        f"{len(names)} {what} ({', '.join(str(name) for name in sorted(names, key=str)[:3])})"
        for what, names in (
            ("missing", info["missing_keys"]),
            ("that it does not use", info["unexpected_keys"]),
            ("of another shape", info["mismatched_keys"]),
            ("that failed", info["error_msgs"]),
        )
        if names
    ]
    if wrong:
        raise Invalid(
            "reference-incomplete",
            f"transformers did not find every weight in its place: {'; '.join(wrong)}",
            place=path.name,
            hint="A reference with random or unused weights proves nothing: repair the checkpoint.",
        )


def _facts(model: Any) -> Facts:
    config = model.config.get_text_config()
    eos = model.generation_config.eos_token_id if model.generation_config is not None else None
    eos = config.eos_token_id if eos is None else eos
    return Facts(
        vocab=int(config.vocab_size),
        positions=getattr(config, "max_position_embeddings", None),
        windows=_windows(config),
        eos=frozenset([] if eos is None else [eos] if isinstance(eos, int) else eos),
    )


def _windows(config: Any) -> tuple[int, ...]:
    """Sliding windows and attention chunks of the layers that there are."""
    kinds = getattr(config, "layer_types", None)
    sizes: set[int] = set()
    for kind, key in (("sliding_attention", "sliding_window"), ("chunked_attention", "attention_chunk_size")):
        size = getattr(config, key, None)
        if isinstance(size, int) and size > 0 and (kinds is None or kind in kinds):
            sizes.add(size)
    return tuple(sorted(sizes))


def _cache_name(model: Any) -> str:
    """transformers 5.24 calls ``cache`` what was ``past_key_values``."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@contextmanager
def _refusals(doing: str) -> Generator[None]:
    """Says in our words what torch or transformers refuse (MoE: fp64; Gemma 2: SDPA; too little memory)."""
    try:
        yield
    except (ValueError, RuntimeError, NotImplementedError, ImportError) as error:
        raise Invalid("reference-refused", f"transformers refuses {doing}: {_first_line(error)}") from error


@contextmanager
def quiet() -> Generator[None]:
    """Nothing of transformers' own on the terminal: what it has to say is asked of it and reported."""
    logging = importlib.import_module("transformers.utils.logging")
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def _no_gguf_bar() -> Generator[None]:
    """The progress bar of transformers' GGUF reader does not ask transformers' own switch."""
    reader: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    bar = getattr(reader, "tqdm", None)
    if bar is None:
        yield
        return
    reader.tqdm = functools.partial(bar, disable=True)
    try:
        yield
    finally:
        reader.tqdm = bar


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
