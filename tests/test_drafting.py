"""A text does not depend on who guesses ahead: not on how well, not on the runtime, not on the caches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paritas.export import export
from paritas.plan import Options
from paritas.runtime.drafting import Drafter, NoDrafts, PromptLookup
from paritas.runtime.genai import GenAISession
from paritas.runtime.generate import Generation, Plan
from paritas.runtime.package import Package, open_package
from paritas.runtime.sampling import Greedy, Multinomial, Sampling
from paritas.runtime.session import RawSession
from paritas.targets import TARGETS

NEW = 24
# A cache that grows, one that drops what has left its window, and a convolution beside attention.
MODELS = ("llama", "gemma3", "lfm2")


class NoText:
    """A tokenizer of which only ids are asked."""

    def stream(self, prompt: Sequence[int]) -> "NoText":
        return self

    def push(self, token: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


@dataclass
class Oracle:
    """Guesses what it was told, every ``wrong``-th of it wrong."""

    truth: Sequence[int]
    width: int
    wrong: int | None = None
    asked: int = field(default=0)

    def draft(self, tokens: Sequence[int], state: Any, room: int) -> list[int]:
        self.asked += 1
        assert state.length == len(tokens) - 1
        place = len(tokens) - PROMPT
        guesses = list(self.truth[place : place + min(self.width, room)])
        return [(g + 1) % 7 if self.wrong and (place + i) % self.wrong == 0 else g for i, g in enumerate(guesses)]

    def learn(self, drafted: int, accepted: int) -> None:
        assert 0 <= accepted <= drafted <= self.width


PROMPT = 19  # longer than the windows of the tiny models


@pytest.fixture(scope="module", params=[(model, target) for model in MODELS for target in TARGETS], ids="-".join)
def package(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path], tmp_path_factory: Any) -> Package:
    model, target = request.param
    out = tmp_path_factory.mktemp("drafting") / "package"
    export(checkpoint(model), out, TARGETS[target], Options(tokenizer=False))
    return open_package(out)


def run(decoder: Any, drafter: Drafter, sampling: Sampling) -> Generation:
    prompt = [3, 5, 3, 5, 9, 3, 5, *np.random.default_rng(1).integers(0, 90, PROMPT - 7).tolist()]
    generation = Generation(decoder, NoText(), prompt, Plan(sampling, frozenset(), NEW, 7, drafter))  # pyright: ignore[reportArgumentType]
    list(generation)
    return generation


@pytest.mark.parametrize("sampling", [Greedy(), Multinomial(temperature=1.3, top_k=40)], ids=["greedy", "drawn"])
def test_guesses_change_no_token(package: Package, sampling: Sampling) -> None:
    decoder = RawSession(package, threads=1)
    alone = run(decoder, NoDrafts(), sampling)
    assert alone.statistics.calls == NEW
    assert alone.statistics.drafted == 0
    for drafter in (PromptLookup(), Oracle(alone.tokens, 5), Oracle(alone.tokens, 5, wrong=3), Oracle([0] * NEW, 3)):
        assert run(decoder, drafter, sampling).tokens == alone.tokens


def test_right_guesses_save_calls(package: Package) -> None:
    decoder = RawSession(package, threads=1)
    alone = run(decoder, NoDrafts(), Greedy())
    cost = run(decoder, Oracle(alone.tokens, 5), Greedy()).statistics
    assert (cost.new_tokens, cost.calls) == (NEW, 5)  # one, then six a call, and room for what is left
    assert cost.accepted == cost.drafted == NEW - cost.calls


@pytest.mark.parametrize("target", [*TARGETS])
def test_ort_genai_goes_back_too(target: str, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    export(checkpoint("llama"), tmp_path / "package", TARGETS[target], Options(tokenizer=False))
    decoder = GenAISession(open_package(tmp_path / "package"), capacity=PROMPT + NEW, threads=1)
    alone = run(decoder, NoDrafts(), Greedy())
    assert decoder.goes_back
    assert run(decoder, Oracle(alone.tokens, 5, wrong=3), Greedy()).tokens == alone.tokens


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 8))
def test_a_lookup_guesses_what_followed_the_same_tokens(tokens: list[int], room: int) -> None:
    lookup = PromptLookup()
    state: Any = None
    guesses = lookup.draft(tokens, state, room)
    runs = [tokens[-n:] for n in (3, 2) if len(tokens) > n]
    found = [
        (run_, end)
        for run_ in runs
        for end in range(len(tokens) - 1, len(run_) - 1, -1)
        if tokens[end - len(run_) : end] == run_
    ]
    if not found:
        assert guesses == []
    else:
        end = found[0][1]
        assert guesses == tokens[end : end + min(lookup.width, room)]


def test_a_lookup_guesses_more_after_right_guesses_and_fewer_after_wrong_ones() -> None:
    lookup = PromptLookup()
    lookup.learn(4, 4)
    assert lookup.width == 8
    lookup.learn(8, 8)
    assert lookup.width == 8
    lookup.learn(8, 2)
    assert lookup.width == 2
    lookup.learn(2, 0)
    assert lookup.width == 1
