"""Tokenizer and chat template of a package against the checkpoint's, on texts that break them."""

import json
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from paritas.audit.finding import Finding
from paritas.errors import ParitasError
from paritas.runtime.chat import ChatTokenizer
from paritas.runtime.template import ChatTemplate

_TOKENIZER, _CONFIG, _TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
_ANSWER = "an answer"
CORPUS = (
    "Hello, world!",
    " a  b   c\t\td \n\n\n e ",
    "  leading, and trailing   ",
    "naïve café, Straße, ﬁ, ½, Ⅳ, e\u0301, \u00e9",
    "پلی کوچک از روی رودخانه می‌گذرد؛ ۱۲۳۴",
    "学校后面有一座小石桥。ＡＢＣ１２３",
    "👩‍👩‍👧‍👦 🇩🇪 👍🏽 🏴‍☠️",
    "\u200bzero\u200dwidth\ufeff \u00a0nbsp\u2028line",
    "def f(x):\n    return {'a': [1, 2.5e-3], \"b\": None}  # ok\n",
    "1234567890 3.14159 1,000,000 0x1F",
    "\x00\x07 control \x7f",
    "",
)
CONVERSATIONS = (
    ({"role": "user", "content": "How are you?"},),
    (
        {"role": "user", "content": "  spaces  "},
        {"role": "assistant", "content": "پاسخ 答 🙂"},
        {"role": "user", "content": "and\nthen?"},
    ),
)


class Words:
    """The tokenizer files of one side, read when they are asked for.

    Args:
        files: name -> content.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files

    def token(self, number: int) -> str | None:
        """How a special token is written."""
        return self.special.get(number)

    @cached_property
    def special(self) -> Mapping[int, str]:
        """Id -> how it is written, of every added token."""
        return dict(_added(self.files.get(_TOKENIZER, b"")))

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The values of tokenizer_config.json."""
        try:
            values = json.loads(self.files.get(_CONFIG, b"{}"))
        except ValueError:
            return {}
        return cast(Mapping[str, Any], values) if isinstance(values, dict) else {}

    @cached_property
    def source(self) -> str | None:
        """The chat template's text."""
        if _TEMPLATE in self.files:
            return self.files[_TEMPLATE].decode(errors="replace")
        template: Any = self.config.get("chat_template")
        if isinstance(template, list):
            named = {each.get("name"): each.get("template") for each in cast(list[dict[str, Any]], template)}
            template = named.get("default")
        return template if isinstance(template, str) else None

    def render(self, messages: tuple[Mapping[str, Any], ...]) -> str | None:
        """A conversation in the chat template; None if there is none or it refuses it."""
        if self.source is None:
            return None
        tokens = {name: token for name in _NAMED if (token := self._named(name)) is not None}
        try:
            return ChatTemplate(self.source, tokens, _TEMPLATE).render(messages)
        except ParitasError:
            return None

    def _named(self, name: str) -> str | None:
        token: Any = self.config.get(name)
        written = cast(dict[str, Any], token).get("content") if isinstance(token, dict) else token
        return written if isinstance(written, str) else None

    def turn_end(self) -> int | None:
        """The special token that the chat template writes after an answer."""
        text = self.render(({"role": "user", "content": "a question"}, {"role": "assistant", "content": _ANSWER}))
        if text is None or _ANSWER not in text:
            return None
        rest = text.rpartition(_ANSWER)[2].lstrip()
        ends = [number for number, token in self.special.items() if token and rest.startswith(token)]
        return max(ends, key=lambda number: len(self.special[number])) if ends else None

    def open(self) -> ChatTokenizer:
        """The tokenizer itself."""
        with tempfile.TemporaryDirectory() as name:
            for file, content in self.files.items():
                (Path(name) / Path(file).name).write_bytes(content)
            return ChatTokenizer.open(name)


def of_folder(folder: Path) -> Words:
    """The tokenizer files in a package's folder."""
    found = (folder / name for name in (_TOKENIZER, _CONFIG, _TEMPLATE, "special_tokens_map.json"))
    return Words({file.name: file.read_bytes() for file in found if file.is_file()})


def text_findings(package: Words, checkpoint: Words) -> Iterator[Finding]:
    """What a package makes of a text, where it is not what the checkpoint makes of it."""
    if _TOKENIZER in checkpoint.files:
        yield from _tokenizer(package, checkpoint)
    if checkpoint.source is not None and _TOKENIZER in package.files:
        yield from _template(package, checkpoint)


def _tokenizer(package: Words, checkpoint: Words) -> Iterator[Finding]:
    remedy = "Copy the tokenizer files of the checkpoint."
    if _TOKENIZER not in package.files:
        yield Finding("tokenizer-lost", "warning", _TOKENIZER, "the package has no tokenizer.json", remedy)
        return
    if package.files[_TOKENIZER] == checkpoint.files[_TOKENIZER]:
        return
    try:
        ours = package.open()
    except ParitasError as error:
        yield Finding("tokenizer-unreadable", "error", _TOKENIZER, error.fact, remedy)
        return
    theirs = checkpoint.open()
    texts = (*CORPUS, *_with_specials(checkpoint), *(t for c in CONVERSATIONS if (t := checkpoint.render(c))))
    wrong: list[str] = []
    normalized: list[str] = []
    for text in texts:
        for special in (True, False):
            got, wanted = ours.encode(text, special), theirs.encode(text, special)
            if got != wanted:
                composed = got == theirs.encode(unicodedata.normalize("NFC", text), special)
                (normalized if composed else wrong).append(_apart(text, got, wanted))
    if wrong:
        fact = f"{len(wrong)} of {2 * len(texts)} encodings differ; {wrong[0]}"
        yield Finding("tokenizer-differs", "error", _TOKENIZER, fact, remedy)
    if normalized:
        fact = f"{len(normalized)} encodings are those of the text in Unicode's form NFC; {normalized[0]}"
        yield Finding("tokenizer-normalizes", "warning", _TOKENIZER, fact, "Compare with transformers' AutoTokenizer.")


def _with_specials(words: Words) -> Iterator[str]:
    """Special tokens in the middle of a text, as a user may type them."""
    for token in list(words.special.values())[:8]:
        yield f"before {token} after{token}{token} "


def _apart(text: str, got: list[int], wanted: list[int]) -> str:
    """A text and the ids from the first that differs on."""
    same = next((i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted)))
    return f"{text[:40]!r} is {_cut(got[same:])} from token {same} on, the checkpoint's is {_cut(wanted[same:])}"


def _cut(ids: list[int]) -> str:
    return f"[{', '.join(map(str, ids[:6]))}{', ...' if len(ids) > 6 else ''}]"


def _template(package: Words, checkpoint: Words) -> Iterator[Finding]:
    remedy = f"Copy {_TEMPLATE} of the checkpoint."
    if package.source is None:
        yield Finding("chat-template-lost", "error", _TEMPLATE, "the package has no chat template", remedy)
        return
    for messages in CONVERSATIONS:
        got, wanted = package.render(messages), checkpoint.render(messages)
        if got != wanted:
            fact = f"a conversation of {len(messages)} turns becomes {_ends(got)}, the checkpoint's {_ends(wanted)}"
            yield Finding("chat-template-differs", "error", _TEMPLATE, fact, remedy)
            return


def _ends(text: str | None) -> str:
    if text is None:
        return "nothing: the template refuses it"
    return repr(text if len(text) <= 80 else f"{text[:40]} ... {text[-40:]}")


def _added(content: bytes) -> Iterator[tuple[int, str]]:
    """Of a tokenizer.json, the added tokens alone: a list at its beginning, megabytes before its end."""
    at = content.find(b'"added_tokens"')
    if at < 0:
        return
    start = content.find(b"[", at)
    for size in (1 << 20, len(content)):
        text = content[start : start + size].decode(errors="ignore")
        try:
            found, _ = json.JSONDecoder().raw_decode(text)
        except ValueError:
            continue
        for entry in cast(list[dict[str, Any]], found):
            if isinstance(entry.get("id"), int) and isinstance(entry.get("content"), str):
                yield entry["id"], entry["content"]
        return
