"""Text to token ids and back, with the package's tokenizer and its chat template."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from paritas.errors import ParitasError
from paritas.runtime.package import read_object
from paritas.runtime.template import ChatTemplate, Message

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
CONTEXT = 8  # tokens before a new one that can change how it is written: a space in front, bytes of one character


class ChatTokenizer:
    """The tokenizer of a folder.

    Attributes:
        tokens: the named special tokens by name (``eos_token`` -> ``<|im_end|>``), those that there are.
    """

    def __init__(self, tokenizer: Tokenizer, tokens: Mapping[str, str], template: ChatTemplate | None) -> None:
        self.tokens = dict(tokens)
        self._tokenizer = tokenizer
        self._template = template

    @classmethod
    def open(cls, folder: str | Path) -> "ChatTokenizer":
        """The tokenizer in ``folder``: tokenizer.json, tokenizer_config.json, chat_template.jinja.

        Raises:
            ParitasError: ``tokenizer-missing``, ``tokenizer-broken``, ``package-config-broken``,
                ``chat-template-broken``.
        """
        folder = Path(folder)
        tokenizer = _read_tokenizer(folder / "tokenizer.json")
        config = read_object(folder / "tokenizer_config.json")
        tokens = _named_tokens(config, read_object(folder / "special_tokens_map.json"))
        return cls(tokenizer, tokens, _read_template(folder, config, tokens))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``, with the special tokens that belong around a text unless told not to."""
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the prompt for the turn after ``messages`` (``{"role": "user", "content": ...}``).

        The template writes the beginning-of-text token itself, so the tokenizer must not add another one.

        Raises:
            ParitasError: ``chat-template-missing``, ``chat-template-refused``, ``chat-template-broken``.
        """
        if self._template is None:
            raise ParitasError(
                "chat-template-missing",
                "the package has no chat template",
                hint="Give the prompt without a template (--raw); a base model has none.",
            )
        return self.encode(self._template.render(messages), add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, special tokens left out."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def token_id(self, token: str) -> int | None:
        """The id of one token as it is written, or None."""
        return self._tokenizer.token_to_id(token)

    def stream(self, prompt: Sequence[int]) -> "TextStream":
        """Decodes what follows ``prompt``, one token at a time."""
        return TextStream(self, prompt)


class TextStream:
    """Writes tokens as they come. No piece ends within a character: it waits for the missing bytes."""

    def __init__(self, tokenizer: ChatTokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt[-CONTEXT:])
        self._written = len(self._ids)  # tokens whose text has been given out
        self._start = 0  # where decoding starts, some tokens before

    def push(self, token: int) -> str:
        """The text that ``token`` completes; empty while a character is incomplete."""
        self._ids.append(token)
        text = self._pending()
        if not text or text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self._start, self._written = self._written, len(self._ids)
        return text

    def finish(self) -> str:
        """What is left when no token follows: a broken character, written as U+FFFD."""
        text = self._pending()
        self._written = len(self._ids)
        return text

    def _pending(self) -> str:
        before = self._tokenizer.decode(self._ids[self._start : self._written])
        return self._tokenizer.decode(self._ids[self._start :])[len(before) :]


def _read_tokenizer(file: Path) -> Tokenizer:
    if not file.is_file():
        raise ParitasError(
            "tokenizer-missing",
            "the package has no tokenizer.json",
            place=str(file),
            hint="Copy the tokenizer files of the checkpoint into the folder.",
        )
    try:
        tokenizer = Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises Exception itself, whatever is wrong with the file
        raise _broken(file, str(error)) from error
    # Left over from training in some files; transformers does not cut or pad unless asked either.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _named_tokens(config: Mapping[str, Any], legacy: Mapping[str, Any]) -> dict[str, str]:
    # transformers reads special_tokens_map.json only beside the oldest files, and there it wins.
    values = {**config, **({} if "added_tokens_decoder" in config else legacy)}
    tokens: dict[str, str] = {}
    for name in NAMED_TOKENS:
        token: Any = values.get(name)
        # Older files write a token as an object with its content and how to strip around it.
        written = cast(dict[str, Any], token).get("content") if isinstance(token, dict) else token
        if isinstance(written, str):
            tokens[name] = written
    return tokens


def _read_template(folder: Path, config: Mapping[str, Any], tokens: Mapping[str, str]) -> ChatTemplate | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            source = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise _broken(file, f"not UTF-8: {error}") from error
        return ChatTemplate(source, tokens, str(file))
    template: Any = config.get("chat_template")
    if isinstance(template, list):  # several by name
        named = cast(list[dict[str, str]], template)
        template = next((entry["template"] for entry in named if entry["name"] == "default"), None)
    if template is None:
        return None
    return ChatTemplate(template, tokens, f"{folder / 'tokenizer_config.json'}: chat_template")


def _broken(file: Path, why: str) -> ParitasError:
    return ParitasError(
        "tokenizer-broken", why, place=str(file), hint="Copy the tokenizer files of the checkpoint again."
    )
