"""A chat template, rendered as transformers renders it, without transformers.

The same sandbox, the same two whitespace rules, the same filter and functions. What templates use for
training (``{% generation %}``) is rendered as the text that it encloses.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paritas.errors import ParitasError

Message = Mapping[str, Any]


class ChatTemplate:
    """A compiled template.

    Args:
        source: the template's text.
        tokens: what it may name: ``bos_token``, ``eos_token``, ...
        place: where it was read, for messages.

    Raises:
        ParitasError: ``chat-template-broken`` if it is no template.
    """

    def __init__(self, source: str, tokens: Mapping[str, str], place: str) -> None:
        self._tokens = dict(tokens)
        self._place = place
        try:
            self._template = _ENVIRONMENT.from_string(source)
        except jinja2.TemplateError as error:
            raise self._broken(f"it cannot be read: {error}") from error

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt for the turn after ``messages``, with a beginning-of-text token if the template has one.

        Raises:
            ParitasError: ``chat-template-refused`` if the template itself will not have these messages,
                ``chat-template-broken`` if it cannot be rendered.
        """
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._tokens,
            )
        except _Refused as error:
            raise ParitasError(
                "chat-template-refused",
                f"the template says: {error}",
                place=self._place,
                hint="Give it messages that it knows, or the prompt without a template (--raw).",
            ) from error
        # A template is a program over messages, and fails as programs do.
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            LookupError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            raise self._broken(f"{type(error).__name__}: {error}") from error

    def _broken(self, why: str) -> ParitasError:
        return ParitasError(
            "chat-template-broken",
            why,
            place=self._place,
            hint="Give the prompt without a template (--raw), or correct the template.",
        )


class _Refused(jinja2.TemplateError):
    """The template called ``raise_exception``."""


class _Generation(Extension):
    """``{% generation %} ... {% endgeneration %}`` marks what the assistant said; here it is plain text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise _Refused(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter escapes HTML; a prompt is none."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    untyped: Any = environment  # jinja2 leaves both dictionaries without types
    untyped.filters["tojson"] = _to_json
    untyped.globals.update(raise_exception=_refuse, strftime_now=_now)
    return environment


_ENVIRONMENT = _environment()
