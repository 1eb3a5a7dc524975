"""A package answers a prompt, in either runtime, as text that comes piece by piece."""

import importlib.util
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from paritas.errors import Invalid, ParitasError
from paritas.runtime.assistant import Assistant, read_pairing
from paritas.runtime.chat import ChatTokenizer
from paritas.runtime.decoder import Decoder
from paritas.runtime.drafting import Draft, Drafter, NoDrafts, PromptLookup
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
        drafted: tokens that were guessed ahead.
        accepted: of those, the ones that the model chose too.
        calls: of the model, the prompt's included.
    """

    prompt_tokens: int
    new_tokens: int
    prefill_seconds: float
    decode_seconds: float
    tokens_per_second: float
    stop_reason: Literal["eos", "length"]
    drafted: int
    accepted: int
    calls: int


@dataclass(frozen=True)
class Plan:
    """How to go on from a prompt: which token to take, when to stop, and who guesses ahead."""

    sampling: Sampling
    stops: frozenset[int]
    max_new_tokens: int
    seed: int | None
    drafter: Drafter


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
        plan = self._plan
        count, reason = _Count(), "length"
        for token in self._chosen(count):
            if token in plan.stops:
                reason = "eos"
                break
            self.tokens.append(token)
            piece = self._text.push(token)
            if piece:
                yield piece
            if len(self.tokens) == plan.max_new_tokens:
                break
        if reason == "eos" and (rest := self._text.finish()):  # a cut may fall within a character, which is no text yet
            yield rest
        self._statistics = count.statistics(len(self.prompt), len(self.tokens), reason)

    def _chosen(self, count: "_Count") -> Iterator[int]:
        """Token after token, each before it is among ``tokens``; guesses are checked in one call, and never trusted.

        A guess is right if it is what the sampling chooses at its place. So the text, and the draws, are those of one
        token a call.
        """
        ids, drafts, state = self.prompt, list[int](), None
        while True:
            asked = np.array([[*ids, *drafts]], np.int64)
            started = time.perf_counter()
            logits, after = self._decoder.forward(asked, state, rows=1 + len(drafts))
            count.call(time.perf_counter() - started, len(drafts))
            right = 0
            for row, guess in zip(logits[0, -1 - len(drafts) :], [*drafts, None], strict=True):
                token = self._choose(row)
                count.token(right=token == guess)
                yield token  # whoever takes it may have had enough
                if token != guess:
                    break
                right += 1
            started = time.perf_counter()
            state = self._decoder.kept(state, after, asked, len(ids) + right)
            if drafts:
                self._plan.drafter.learn(len(drafts), right)
            room = self._plan.max_new_tokens - len(self.tokens) - 1
            ids, drafts = self.tokens[-1:], self._plan.drafter.draft([*self.prompt, *self.tokens], state, room)
            count.decode += time.perf_counter() - started

    def _choose(self, logits: NDArray[np.float32]) -> int:
        if np.isnan(logits).any():
            raise Invalid(
                "logits-nan",
                f"the logits after {len(self.prompt) + len(self.tokens)} tokens are not numbers",
                place=self.runtime,
                hint="`paritas verify` says where they arise.",
            )
        return self._plan.sampling.choose(logits, [*self.prompt, *self.tokens], self._random)


@dataclass
class _Count:
    """What a generation has cost so far."""

    prefill: float = 0.0
    decode: float = 0.0
    calls: int = 0
    chosen: int = 0
    drafted: int = 0
    accepted: int = 0

    def call(self, seconds: float, drafted: int) -> None:
        if self.calls:
            self.decode += seconds
        else:
            self.prefill = seconds
        self.calls += 1
        self.drafted += drafted

    def token(self, *, right: bool) -> None:
        self.chosen += 1
        self.accepted += right

    def statistics(self, prompt: int, new: int, reason: Literal["eos", "length"]) -> Statistics:
        later = self.chosen - 1
        return Statistics(
            prompt,
            new,
            self.prefill,
            self.decode,
            later / self.decode if later else 0.0,
            reason,
            self.drafted,
            self.accepted,
            self.calls,
        )


def generate(
    package: Package,
    prompt: str,
    *,
    max_new_tokens: int | None = None,
    chat: bool = True,
    sampling: Sampling | None = None,
    runtime: Runtime = "auto",
    seed: int | None = None,
    draft: Draft = "auto",
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
        draft: who guesses ahead. The text does not depend on it, where the two best tokens are not equally good to
            the last bits.

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
    decoder, drafter = _loaded(package, runtime, len(ids) + new, draft)
    plan = Plan(sampling, stop_ids(package, tokenizer), new, seed, drafter)
    return Generation(decoder, tokenizer, ids, plan)


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


def _loaded(package: Package, runtime: Runtime, capacity: int, draft: Draft) -> tuple[Decoder, Drafter]:
    """The package in a runtime, and who guesses for it."""
    pairing = read_pairing(package.folder) if draft in ("auto", "assistant") else None
    if draft == "assistant" and (pairing is None or runtime == "genai"):
        raise ParitasError(
            "drafter-missing",
            "the package has no drafter of its own" if pairing is None else "ORT GenAI cannot show a drafter the cache",
            place=str(package.folder),
            hint="--draft lookup guesses from the text alone." if pairing is None else "--runtime onnxruntime",
        )
    if pairing is not None and runtime != "genai":
        target = RawSession(package, also=(pairing.hidden,))
        return target, Assistant(package, pairing, target)
    made_for_genai = package.genai_config is not None
    installed = importlib.util.find_spec("onnxruntime_genai") is not None
    if runtime == "genai" or (runtime == "auto" and made_for_genai and installed):
        decoder: Decoder = GenAISession(package, capacity=capacity)
    else:
        decoder = RawSession(package, capacity=capacity)
    return decoder, PromptLookup() if decoder.goes_back and draft != "none" else NoDrafts()
