"""Token ids for the probes, from the checkpoint's own tokenizer, or seeded random ones if it has none."""

import importlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paritas.checkpoint import Checkpoint
from paritas.errors import Invalid, ParitasError
from paritas.verify.loading import quiet
from paritas.verify.prompts import LONG_TEXT

SEED = 20261129
"""Of the random ids. Fixed, so that two runs ask the same."""


class Source(Protocol):
    """Where ids come from."""

    @property
    def origin(self) -> str:
        """Said in the evidence."""
        ...

    @property
    def seed(self) -> int | None:
        """Of random ids; None if they are text."""
        ...

    def prompt(self, text: str) -> tuple[int, ...]:
        """A question as a user would ask it."""
        ...

    def running(self, length: int, skip: int = 0) -> tuple[int, ...]:
        """``length`` ids of running text, which starts ``skip`` ids later than its first."""
        ...


@dataclass(frozen=True)
class RandomIds:
    """For a checkpoint without a tokenizer."""

    vocab: int
    seed: int = SEED
    origin: str = f"random ids, seed {SEED}: the checkpoint has no tokenizer"

    def prompt(self, text: str) -> tuple[int, ...]:
        """As many ids as the text has words and a few, always the same for the same text."""
        return self._draw(8 + len(text.split()), sum(text.encode()))

    def running(self, length: int, skip: int = 0) -> tuple[int, ...]:
        """Uniform over the vocabulary."""
        return self._draw(length + skip, 0)[skip:]

    def _draw(self, count: int, stream: int) -> tuple[int, ...]:
        return tuple(np.random.default_rng([self.seed, stream]).integers(0, self.vocab, count).tolist())


class TokenizerIds:
    """The checkpoint's tokenizer, as transformers loads it.

    Args:
        folder: holds its files.
        vocab: of the model.

    Raises:
        Invalid: ``tokenizer-broken``; ``tokenizer-beyond-vocabulary`` when it gives an id the model does
            not have.
    """

    seed: int | None = None

    def __init__(self, folder: Path, vocab: int) -> None:
        self._tokenizer, self._vocab = _load(folder), vocab
        self._render: Callable[[str], str] | None = self._template()
        how = "its chat template" if self._render else "beginning-of-text token, no chat template"
        self.origin = f"the checkpoint's tokenizer, {how}"

    def prompt(self, text: str) -> tuple[int, ...]:
        """In the chat template if there is one."""
        if self._render is None:
            return self._plain(text)
        return self._checked(self._tokenizer(self._render(text), add_special_tokens=False)["input_ids"])

    def running(self, length: int, skip: int = 0) -> tuple[int, ...]:
        """The bundled text without a template, repeated."""
        once = self._plain(LONG_TEXT)
        text = LONG_TEXT * (2 + (length + skip) // len(once))
        return self._plain(text)[skip : skip + length]

    def _plain(self, text: str) -> tuple[int, ...]:
        with quiet():  # it warns of a text beyond its model_max_length, of which we take a part
            ids: list[int] = list(self._tokenizer(text, add_special_tokens=True)["input_ids"])
        first = self._tokenizer.bos_token_id
        if first is not None and ids[:1] != [first]:
            ids.insert(0, first)
        return self._checked(ids)

    def _template(self) -> Callable[[str], str] | None:
        """None if there is no template, or if it cannot put a single question."""
        if not self._tokenizer.chat_template:
            return None

        def render(text: str) -> str:
            turn = [{"role": "user", "content": text}]
            return self._tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)

        broken: type[Exception] = importlib.import_module("jinja2").TemplateError
        try:
            render("?")
        except (broken, TypeError, ValueError) as error:
            raise Invalid(
                "tokenizer-broken", f"the chat template fails on one question: {error}", place="chat_template"
            ) from error
        return render

    def _checked(self, ids: Sequence[int]) -> tuple[int, ...]:
        if not ids or max(ids) >= self._vocab:
            raise Invalid(
                "tokenizer-beyond-vocabulary",
                f"the tokenizer gives id {max(ids, default=None)}, the model has {self._vocab:,} tokens",
                hint="The checkpoint's tokenizer belongs to another model.",
            )
        return tuple(ids)


def ids_source(checkpoint: Checkpoint, vocab: int) -> Source:
    """Where the ids for this checkpoint come from.

    Raises:
        Invalid: as :class:`TokenizerIds`.
    """
    if not checkpoint.tokenizer_files:
        return RandomIds(vocab)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in checkpoint.tokenizer_files.items():
            (folder / Path(file).name).write_bytes(content)
        return TokenizerIds(folder, vocab)


def _load(folder: Path) -> Any:
    transformers = importlib.import_module("transformers")
    try:
        with quiet():
            return transformers.AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise ParitasError(
            "tokenizer-broken",
            f"transformers cannot load the checkpoint's tokenizer: {str(error).strip()[:200]}",
            hint="Repair tokenizer.json and tokenizer_config.json.",
        ) from error
