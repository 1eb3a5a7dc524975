"""A package answers a prompt, in either runtime, as text that comes piece by piece."""

import importlib.util
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from paritas.errors import Invalid, ParitasError
from paritas.runtime.chat import ChatTokenizer
from paritas.runtime.decoder import Decoder, State
from paritas.runtime.genai import GenAISession
from paritas.runtime.package import Package, read_object
from paritas.runtime.sampling import Sampling, of_package
from paritas.runtime.session import RawSession

Runtime = Literal["auto", "genai", "onnxruntime"]
NEW_TOKENS = 256
"""Where a text is cut if nobody says."""


@dataclass(frozen=True)
class Statistics:
    """What a generation cost; loading the package is not counted, nor what is done with the text.

    Attributes:
        prompt_tokens: tokens of the prompt, template included.
        new_tokens: tokens generated; the one that ended the text is not counted.
        prefill_seconds: until the first new token was chosen.
        decode_seconds: from then on.
        tokens_per_second: tokens chosen in ``decode_seconds``, by that time; 0 if there was none.
        stop_reason: ``eos`` if the model ended the text, ``length`` if it was cut.
    """

    prompt_tokens: int
    new_tokens: int
    prefill_seconds: float
    decode_seconds: float
    tokens_per_second: float
    stop_reason: Literal["eos", "length"]


@dataclass(frozen=True)
class Plan:
    """How to go on from a prompt: which token to take, and when to stop."""

    sampling: Sampling
    stops: frozenset[int]
    max_new_tokens: int
    seed: int | None


class Generation:
    """The pieces of a text, once each, as they come; afterwards what they cost.

    Attributes:
        prompt: ids of the prompt.
        tokens: ids generated so far, without the one that ended the text.
        runtime: the runtime that answers, and its version.
    """

    def __init__(self, decoder: Decoder, tokenizer: ChatTokenizer, prompt: Sequence[int], plan: Plan) -> None:
        self.prompt = list(prompt)
        self.tokens: list[int] = []
        self.runtime = f"{decoder.runtime} {decoder.version}"
        self._decoder = decoder
        self._text = tokenizer.stream(prompt)
        self._plan = plan
        self._random = np.random.default_rng(plan.seed)
        self._statistics: Statistics | None = None
        self._pieces = self._run()

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    @property
    def statistics(self) -> Statistics:
        """What it cost.

        Raises:
            RuntimeError: it is not over.
        """
        if self._statistics is None:
            raise RuntimeError("a generation has its statistics once every piece has been taken")
        return self._statistics

    def _run(self) -> Iterator[str]:
        plan, decode, chosen = self._plan, 0.0, 0
        start = time.perf_counter()
        token, state = self._next(self.prompt, None)
        prefill = time.perf_counter() - start
        while token not in plan.stops:
            self.tokens.append(token)
            piece = self._text.push(token)
            if piece:
                yield piece
            if len(self.tokens) == plan.max_new_tokens:
                break
            start = time.perf_counter()
            token, state = self._next([token], state)
            decode += time.perf_counter() - start
            chosen += 1
        ended = token in plan.stops
        if ended and (rest := self._text.finish()):  # a cut may fall within a character, which is no text yet
            yield rest
        self._statistics = Statistics(
            len(self.prompt),
            len(self.tokens),
            prefill,
            decode,
            chosen / decode if chosen else 0.0,
            "eos" if ended else "length",
        )

    def _next(self, ids: Sequence[int], state: State | None) -> tuple[int, State]:
        logits, state = self._decoder.forward(np.array([ids], np.int64), state)
        last = logits[0, -1]
        if np.isnan(last).any():
            raise Invalid(
                "logits-nan",
                f"the logits after {state.length} tokens are not numbers",
                place=self.runtime,
                hint="`paritas verify` says where they arise.",
            )
        return self._plan.sampling.choose(last, [*self.prompt, *self.tokens], self._random), state


def generate(
    package: Package,
    prompt: str,
    *,
    max_new_tokens: int | None = None,
    chat: bool = True,
    sampling: Sampling | None = None,
    runtime: Runtime = "auto",
    seed: int | None = None,
) -> Generation:
    """The text that follows ``prompt``; iterate over it.

    Args:
        package: what answers.
        prompt: what the user says (``chat``), or the beginning of a text, to be continued as it stands.
        max_new_tokens: where the text is cut if the model does not end it; None takes :data:`NEW_TOKENS`, or as many
            as the context has room for.
        chat: put the prompt into the package's chat template.
        sampling: how to choose; None does what the package asks for itself, or takes the best token.
        runtime: ``auto`` takes ORT GenAI if it is installed and the package is made for it.
        seed: of the draws; None draws anew each time.

    Raises:
        ParitasError: ``prompt-empty``, ``prompt-too-long`` if it would leave the context,
            ``max-tokens-invalid``, and those of the tokenizer, the template and the runtime.
        Invalid: the package cannot be run.
    """
    tokenizer = ChatTokenizer.open(package.folder)
    ids = tokenizer.encode_chat([{"role": "user", "content": prompt}]) if chat else tokenizer.encode(prompt)
    if not ids:
        raise ParitasError("prompt-empty", "the prompt has no tokens", hint="Give a prompt of at least one word.")
    new = _room(package, len(ids), max_new_tokens)
    if sampling is None:
        sampling = of_package((package.genai_config or {}).get("search", {}))
    plan = Plan(sampling, stop_ids(package, tokenizer), new, seed)
    return Generation(_load(package, runtime, len(ids) + new), tokenizer, ids, plan)


def stop_ids(package: Package, tokenizer: ChatTokenizer) -> frozenset[int]:
    """The ids that end a text, of genai_config.json, of generation_config.json, or the tokenizer's own."""
    config = package.genai_config
    model = read_object(package.folder / "generation_config.json") if config is None else config["model"]
    ids: Any = model.get("eos_token_id")
    if ids is None and "eos_token" in tokenizer.tokens:
        ids = tokenizer.token_id(tokenizer.tokens["eos_token"])
    if ids is None:
        return frozenset()
    return frozenset(cast(list[int], ids) if isinstance(ids, list) else [int(ids)])


def _room(package: Package, prompt: int, asked: int | None) -> int:
    """How many tokens to add to a prompt of so many."""
    if asked is not None and asked < 1:
        raise ParitasError("max-tokens-invalid", f"{asked} new tokens asked for", hint="Ask for one at least.")
    context = None if package.genai_config is None else package.genai_config["model"].get("context_length")
    if not isinstance(context, int):
        return asked or NEW_TOKENS
    if prompt + (asked or 1) > context:
        raise ParitasError(
            "prompt-too-long",
            f"{prompt} tokens of prompt and {asked or 1} new ones are more than the context of {context}",
            place=str(package.folder),
            hint=f"Ask for at most {context - prompt} new tokens." if prompt < context else "Shorten the prompt.",
        )
    return asked or min(NEW_TOKENS, context - prompt)


def _load(package: Package, runtime: Runtime, capacity: int) -> Decoder:
    made_for_genai = package.genai_config is not None
    installed = importlib.util.find_spec("onnxruntime_genai") is not None
    if runtime == "genai" or (runtime == "auto" and made_for_genai and installed):
        return GenAISession(package, capacity=capacity)
    return RawSession(package)
