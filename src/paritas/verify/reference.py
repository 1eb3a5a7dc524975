"""The reference: transformers' own class on the checkpoint, fp32, eager, never patched, never ``generate``.

It is loaded once. The other ways in which it is asked (fp64, SDPA) are the same object, cast or switched by
transformers' own methods, so that a checkpoint that takes minutes to read (GGUF) is read once: bf16 -> fp32
-> fp64 loses nothing. Everything that is untyped here (torch, transformers) stays here.
"""

import copy
import inspect
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint import Checkpoint
from paritas.errors import Invalid
from paritas.runtime.held import Held
from paritas.verify.breaking import Fault, faults
from paritas.verify.loading import first_line, load_reference, quiet, require_torch
from paritas.verify.own import Own, Parameter, install
from paritas.verify.routing import Heard, Ties, hearing, rerouting
from paritas.verify.scales import FACTORS, Scales
from paritas.verify.tables import read_tables, rounds

_PART = 1 << 22  # weights that are nudged at a time


@dataclass(frozen=True)
class Facts:
    """What probes have to know about a model, from the reference's own text configuration.

    Attributes:
        vocab: logits a token.
        positions: the longest sequence it was made for; None if the configuration does not say.
        windows: its sliding windows in tokens, ascending; empty if every layer sees everything.
        eos: tokens that end a text.
        switches: lengths beyond which RoPE rotates otherwise, ascending.
        parameters: how many weights it has.
    """

    vocab: int
    positions: int | None
    windows: tuple[int, ...]
    eos: frozenset[int]
    switches: tuple[int, ...] = ()
    parameters: int = 0


class Reference:
    """transformers on a checkpoint.

    Attributes:
        class_name: transformers' class.
        facts: what its configuration says.
        unused: tensors of the checkpoint that transformers does not compute with.

    Raises:
        ParitasError, Invalid: as :func:`~paritas.verify.loading.load_reference`.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._torch, _ = require_torch()
        self._model, self.unused = load_reference(checkpoint)
        self._cache = _cache_name(self._model)
        # Dynamic RoPE stays at the longest call so far until a shorter one than the model's own context: a lone
        # token before each sequence makes it what it is for the first sequence.
        ropes = _ropes(self._model.config.get_text_config())
        self._remembers = any(rope.get("rope_type") == "dynamic" for rope in ropes)
        self.class_name: str = type(self._model).__name__
        self.facts = _facts(self._model)

    @property
    def model(self) -> Any:
        """transformers' model, for whoever looks inside."""
        return self._model

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

    def keys_values(self, ids: Sequence[int]) -> dict[str, NDArray[np.floating[Any]]]:
        """By name (``layer 3 keys``), what each layer keeps after a prefill, keys and values before all else.

        Keys and values are ``[kv_heads, tokens, head_dim]``; a layer with a window keeps the last tokens alone. What a
        convolution has seen last is ``[1, tokens, channels]``, without the oldest column: it is kept, and never used.

        Raises:
            Invalid: ``reference-refused``: the class keeps something else.
        """
        _, cache = self._call([list(ids)], None, keep=True)
        halves: dict[str, Any] = {}
        states: dict[str, Any] = {}
        for number, layer in enumerate(getattr(cache, "layers", ())):
            seen: dict[int, Any] = getattr(layer, "conv_states", {})
            if getattr(layer, "keys", None) is not None:
                halves |= {f"layer {number} {half}": getattr(layer, half)[0] for half in ("keys", "values")}
            elif len(seen) == 1 and not any(getattr(layer, "is_recurrent_states_initialized", {}).values()):
                states[f"layer {number} convolution"] = seen[0].mT[:, 1:]
            elif type(layer).__name__ != "DummyLayer":  # which is that of a layer without keys of its own
                halves = states = {}
                break
        if not halves | states:
            raise Invalid("reference-refused", f"{self.class_name} keeps something else than keys and values")
        return {name: each.numpy() for name, each in (halves | states).items()}

    def hidden_states(self, ids: Sequence[int]) -> dict[str, NDArray[np.floating[Any]]]:
        """``hidden_states.N`` ``[1, tokens, hidden]``: behind layer N, behind the last one what goes into the head.

        A layer behind which there are several streams (AltUp) is left out.
        """
        seen: list[Any] = []

        def keep(_: Any, given: Any) -> None:
            seen.append(given[0])

        hook = self._model.get_output_embeddings().register_forward_pre_hook(keep)
        try:
            with self._torch.inference_mode(), quiet(), _refusals("a forward pass"):
                asked = self._torch.tensor([list(ids)])
                between = self._model(input_ids=asked, use_cache=False, output_hidden_states=True).hidden_states[1:-1]
        finally:
            hook.remove()
        depth = len(between)
        states = {index: state for index, state in enumerate(between) if state.ndim == 3} | {depth: seen[-1]}
        return {f"hidden_states.{index}": self._numpy(state) for index, state in states.items()}

    def faults(self, used: frozenset[int]) -> tuple[Fault, ...]:
        """Faults that this model can have; ``used`` are the token ids that are fed."""
        return faults(self._model, used)

    def hold(self, held: Held) -> Own:
        """From now on it computes with the numbers that a package stores, as far as they are the checkpoint's, rounded.

        Weights, cosines and sines, and factors of the configuration.
        """
        own = install(held, self._parameters())
        ropes = [module for name, module in self._model.named_modules() if name.endswith("rotary_emb")]
        widths = {int(b.shape[0]) for m in ropes for b in m.buffers() if b.ndim == 1}
        if tables := read_tables(held, [width * times for width in widths for times in (1, 2)]):
            for module in ropes:
                module.register_forward_hook(rounds(tables, self.facts.switches), with_kwargs=True)
        self._round_scales(held)
        return own

    def _parameters(self) -> tuple[Parameter, ...]:
        """A head that is tied is untied: a package may store it otherwise than the embedding."""
        embedding, head = self._model.get_input_embeddings().weight, self._model.get_output_embeddings()
        if head is not None and head.weight.data_ptr() == embedding.data_ptr():
            head.weight = self._torch.nn.Parameter(embedding.detach().clone(), requires_grad=False)
        used, table = self._used(), self._torch.nn.Embedding
        tables = {f"{name}.weight" for name, module in self._model.named_modules() if isinstance(module, table)}
        return tuple(
            Parameter(
                name,
                each.detach().reshape(-1, each.shape[-1] if each.ndim else 1).numpy(),
                each is embedding,
                name.rpartition(".")[0] in used,
                each.ndim == 3 or name in tables,
            )
            for name, each in self._model.named_parameters()
        )

    def _used(self) -> set[str]:
        """Names of the modules that text goes through."""
        used: set[str] = set()

        def noting(name: str) -> Callable[[Any, Any], None]:
            return lambda module, given: used.add(name)

        hooks = [each.register_forward_pre_hook(noting(name)) for name, each in self._model.named_modules()]
        self._call([[0, 1]], None)
        for hook in hooks:
            hook.remove()
        return used

    def _round_scales(self, held: Held) -> None:
        """Factors of the configuration, and the embedding's scale, where the package stores them in a narrow dtype."""
        scales = Scales.of(held)
        for name, buffer in self._model.named_buffers():
            if name.endswith("embed_scale"):
                buffer.fill_(scales.stored(float(buffer)))
        things: list[Any] = [*self._model.modules(), self._model.config.get_text_config()]
        for thing in things:
            values: dict[str, Any] = thing.__dict__
            for name in [name for name in values if name.endswith(FACTORS) and isinstance(values[name], float)]:
                setattr(thing, name, scales.stored(values[name]))

    @contextmanager
    def in_dtype(self, dtype: str) -> Generator[None]:
        """Within, it is transformers in ``fp16`` or ``bf16``: a cast of the model, whose fp32 buffers are not cast.

        Raises:
            Invalid: ``reference-refused``: torch has no kernel for it.
        """
        whole = self._model
        kind = {"fp16": self._torch.float16, "bf16": self._torch.bfloat16}[dtype]
        self._model = copy.deepcopy(whole).to(kind)
        wide = dict(whole.named_buffers(remove_duplicate=False))  # dynamic RoPE has one buffer under two names
        for name, narrow in self._model.named_buffers(remove_duplicate=False):
            narrow.data = wide[name].data.clone()
        try:
            yield
        finally:
            self._model = whole

    def hearing(self) -> AbstractContextManager[Heard]:
        """Within, what its routers of experts say is written down."""
        return hearing(self._model)

    def rerouting(self, ties: Ties) -> AbstractContextManager[None]:
        """Within, tokens of the sequence that is asked next go to the other one of two experts that tie."""
        return rerouting(self._model, ties)

    @contextmanager
    def sdpa(self) -> Generator[None]:
        """Within, attention is torch's scaled_dot_product_attention.

        Raises:
            Invalid: ``reference-refused``: the class cannot.
        """
        with quiet(), _refusals("SDPA"):
            self._model.set_attn_implementation("sdpa")
        try:
            if self._model.config._attn_implementation != "sdpa":
                raise Invalid("reference-refused", f"{self.class_name} has no SDPA attention")
            yield
        finally:
            with quiet():
                self._model.set_attn_implementation("eager")

    def to_fp64(self) -> None:
        """From now on it computes in fp64 (as far as transformers does: norms and softmax stay fp32).

        Experts are computed one after the other from now on: their grouped multiplication has no fp64.
        """
        self._model = self._model.double()
        if getattr(self._model.config, "_experts_implementation", None) is not None:
            self._model.set_experts_implementation("eager")

    def nudge(self, seed: int) -> None:
        """From now on it computes in fp32, with every weight a last bit greater, a last bit smaller, or as it was."""
        self._model = self._model.float()
        generator = self._torch.Generator().manual_seed(seed)
        for parameter in self._model.parameters():
            for part in parameter.data.view(-1).split(_PART):
                way = self._torch.randint(-1, 2, part.shape, generator=generator)
                part.copy_(self._torch.nextafter(part, part * (1 + way / 2)))

    def _call(self, ids: list[list[int]], cache: Any, keep: bool = False) -> tuple[NDArray[Any], Any]:
        arguments = {"input_ids": self._torch.tensor(ids), "use_cache": keep}
        if keep:
            arguments[self._cache] = cache
        with self._torch.inference_mode(), quiet(), _refusals("a forward pass"):
            if cache is None and self._remembers:
                self._model(input_ids=self._torch.tensor([[0]]), use_cache=False)
            output = self._model(**arguments)
        return self._numpy(output.logits), output[self._cache] if keep else None

    def _numpy(self, logits: Any) -> NDArray[Any]:
        """numpy has no bf16."""
        return (logits.float() if logits.dtype == self._torch.bfloat16 else logits).numpy()


def _facts(model: Any) -> Facts:
    config = model.config.get_text_config()
    eos = model.generation_config.eos_token_id if model.generation_config is not None else None
    eos = config.eos_token_id if eos is None else eos
    ropes = _ropes(config)
    return Facts(
        vocab=int(config.vocab_size),
        positions=_positions(config, ropes),
        windows=_windows(config),
        eos=frozenset([] if eos is None else [eos] if isinstance(eos, int) else eos),
        switches=_switches(config, ropes),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def _ropes(config: Any) -> list[dict[str, Any]]:
    """The parameters of every RoPE: one for all layers, or one for each kind of layer.

    Not those of one that is called dynamic and has an alpha (Hunyuan): it is the same at every length.
    """
    given: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    each: list[Any] = [given] if "rope_type" in given else list(given.values())
    return [rope for rope in each if isinstance(rope, dict) and not cast(dict[str, Any], rope).get("alpha")]


def _positions(config: Any, ropes: list[dict[str, Any]]) -> int | None:
    """The longest sequence; dynamic scaling is made to go beyond what the configuration names."""
    named = getattr(config, "max_position_embeddings", None)
    factors = [rope.get("factor") or 1.0 for rope in ropes if rope.get("rope_type") == "dynamic"]
    return named if named is None or not factors else int(named * max(factors))


def _switches(config: Any, ropes: list[dict[str, Any]]) -> tuple[int, ...]:
    named = getattr(config, "max_position_embeddings", None)
    lengths: set[int] = set()
    for rope in ropes:
        original = rope.get("original_max_position_embeddings") or named
        length = {"longrope": original, "dynamic": named}.get(rope.get("rope_type", ""))
        if isinstance(length, int):
            lengths.add(length)
    return tuple(sorted(lengths))


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
    """Says in our words what torch or transformers refuse (Gemma 2: SDPA; too little memory)."""
    try:
        yield
    except (ValueError, RuntimeError, NotImplementedError, ImportError) as error:
        raise Invalid("reference-refused", f"transformers refuses {doing}: {first_line(error)}") from error
