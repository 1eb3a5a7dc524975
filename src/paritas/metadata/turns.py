"""The loop over policies, turn by turn: sample, keep what was chosen, end or go on, decode."""

from collections.abc import Sequence
from dataclasses import dataclass

from paritas.metadata.decoder import Decoder
from paritas.metadata.states import COMPONENT
from paritas.metadata.workflow import Carry, Emit, Invoke, Loop
from paritas.policies import initializer, sampler, termination, updates

MASK = "mask"
# Cells that the workflow itself keeps -> what the loop's setup begins them with, where that is not their initializer.
_BEGUN = {"token": f"begin.{initializer.SLOT}", MASK: f"begin.{initializer.MASK}", "logits": "begin.last_logits"}


@dataclass(frozen=True)
class Names:
    """Of a decoder's ports: ids, mask (None if it takes none), logits."""

    ids: str
    mask: str | None
    logits: str

    @classmethod
    def of(cls, decoder: Decoder) -> "Names":
        """By the roles of its ports."""
        named = {role: name for name, role in decoder.roles.items()}
        return cls(named["token_ids"], named.get("attention_mask"), decoder.logits)


def loop(names: Names, decoder: Decoder, sampling: Sequence[str]) -> Loop:
    """A token a turn; ``sampling`` are the sampler's inputs that a request may give."""
    return Loop(
        setup=_setup(names, decoder),
        steps=(
            _sample(sampling),
            Invoke(
                updates.TOKEN,
                {"current": "token", "token": "step.token", **_ROW},
                {"next": "step.slot", "accepted": "step.accepted"},
            ),
            _terminate(),
            Emit("step.slot", "tokens", when="active"),
            Invoke(
                updates.CACHE,
                {"attention_mask": MASK, "accepted": "step.accepted"},
                {"next_attention_mask": "step.mask"},
            ),
            *_decode(names, decoder, ("step.slot", "step.mask", ""), "step"),
        ),
        going="continue",
        most="request.max_iterations",
        carried=(
            *(Carry(state.past, f"step.{state.present}", f"begin.{state.present}") for state in decoder.states),
            *(Carry(cell, f"step.{source}", _BEGUN.get(cell)) for cell, source in _CARRIED.items()),
        ),
        generation=False,
    )


_ROW = {"active": "active", "done": "done"}
_CARRIED = {
    "active": "active",
    "done": "done",
    "accepted_len": "accepted",
    "continue": "continue",
    "counter": "counter",
    "token": "slot",
    "logits": "last_logits",
    MASK: "mask",
}


def _setup(names: Names, decoder: Decoder) -> tuple[Invoke, ...]:
    """The prompt's mask and empty states, then the prompt itself."""
    begun = [initializer.MASK, initializer.SLOT, "eos_ids", "eos_lengths", "max_iterations"]
    begun += [state.past for state in decoder.states]
    given = {"prompt_tokens": "request.input_ids", "most_tokens": "request.max_iterations"}
    return (
        Invoke(initializer.NAME, given, {name: f"begin.{name}" for name in begun}),
        *_decode(names, decoder, ("request.input_ids", f"begin.{initializer.MASK}", "begin."), "begin"),
    )


def _decode(names: Names, decoder: Decoder, given: tuple[str, str, str], into: str) -> tuple[Invoke, Invoke]:
    """The decoder, and its last logits. ``given``: tokens, mask, and what stands before the names of states."""
    token, seen, states = given
    inputs = {names.ids: token, **({} if names.mask is None else {names.mask: seen})}
    inputs |= {state.past: f"{states}{state.past}" for state in decoder.states}
    logits = f"{into}.{names.logits}"
    return (
        Invoke(COMPONENT, inputs, {name: f"{into}.{name}" for name in decoder.outputs}),
        Invoke(updates.LAST_LOGITS, {"logits": logits}, {"last_logits": f"{into}.last_logits"}),
    )


def _sample(sampling: Sequence[str]) -> Invoke:
    asked = {name: f"request.{name}" for name in sampling}
    return Invoke(
        sampler.NAME,
        {"logits": "logits", **asked, "seed": "request.seed", "counter": "counter", **_ROW},
        {"token": "step.token", "next_counter": "step.counter"},
    )


def _terminate() -> Invoke:
    return Invoke(
        termination.NAME,
        {
            "tokens": "step.token",
            "eos_ids": "begin.eos_ids",
            "eos_lengths": "begin.eos_lengths",
            "iteration": "loop.iteration",
            "max_iterations": "begin.max_iterations",
            "active": "active",
        },
        {"done": "step.done", "next_active": "step.active", "continue": "step.continue"},
    )
