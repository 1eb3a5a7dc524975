"""The live reference: transformers' model, asked in the ways in which a package is asked, and open to faults.

Nothing of transformers is patched on disk or in its classes. A fault is another parameter, another submodule or another
attribute of this one model, or a hook; each is taken back.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.runtime.decoder import State
from paritas.runtime.rows import ALL
from paritas.verify.loading import quiet, require_torch

Rows = NDArray[np.float32]
Positions = NDArray[np.int64]
Placing = Callable[[int, int, NDArray[np.int64]], Positions]
"""New tokens, tokens before them, mask ``[batch, total]`` -> positions ``[batch, new]``."""
Recalling = Callable[[Any, int], None]
"""transformers' cache, and tokens before the call -> nothing: what is kept is changed in place."""


@dataclass(frozen=True)
class LiveState:
    """After ``length`` tokens. The cache grows in place: only the latest state can be gone on from."""

    length: int
    batch: int
    cache: Any
    positions: NDArray[np.int64]


class Driver:
    """A :class:`paritas.runtime.decoder.Decoder` over transformers' model.

    Args:
        model: transformers' model, fp32, eager.
        names: tensor of the text model -> what the checkpoint calls it.

    Attributes:
        model: transformers' model, fp32, eager.
        layers: its decoder layers.
        mask: of the current call, ``[batch, total]``.
        past: tokens before the current call.
        positions: of the current call, ``[batch, new]``.
        key_positions: of all tokens so far, ``[batch, total]``.
        place: a fault in positions: (new, past, mask) -> positions; None if there is none.
        is_beginning: whether the current call is none of a sequence, but one before it.
        recalls: faults in what is kept from earlier calls, each made before every call but the first.
    """

    runtime = "transformers"
    goes_back = False

    def __init__(self, model: Any, names: Mapping[str, str]) -> None:
        self._torch, transformers = require_torch()
        self.version: str = transformers.__version__
        self.model = model
        self._prefix, self.layers = _layers(model)
        self._modules: dict[str, Any] = dict(model.named_modules(remove_duplicate=False))
        self._paths = {text.rpartition(".")[0]: own.rpartition(".")[0] for text, own in names.items()}
        self.mask: NDArray[np.int64] = np.ones((1, 1), np.int64)
        self.past = 0
        self.positions: NDArray[np.int64] = np.zeros((1, 1), np.int64)
        self.key_positions = self.positions
        self.place: Placing | None = None
        self.recalls: list[Recalling] = []
        self.is_beginning = False
        self._remembers = any("dynamic" in str(getattr(module, "rope_type", "")) for module in model.modules())

    @property
    def config(self) -> Any:
        """The text model's configuration."""
        return self.model.config.get_text_config()

    # Names.

    def owner(self, tensor: str) -> tuple[Any, str] | None:
        """The module that holds a tensor of the checkpoint, and the name of its attribute; None if none does."""
        path, _, name = tensor.rpartition(".")
        module = self.module(path)
        held = getattr(module, name, None) if module is not None else None
        return (module, name) if held is not None and hasattr(held, "shape") else None

    def module(self, path: str) -> Any | None:
        """The module that the text model calls ``path``: ``model.layers.0.self_attn.q_proj``."""
        for name in (path, self._paths.get(path, path)):
            own = re.sub(r"^model\.", f"{self._prefix}.", name) if self._prefix else name
            for each in (own, name):
                if each in self._modules:
                    return self._modules[each]
            ends = [module for full, module in self._modules.items() if full.endswith(f".{name}")]
            if len(ends) == 1:
                return ends[0]
        return None

    # Asking.

    def forward(
        self,
        ids: NDArray[np.int64],
        state: State | None = None,
        mask: NDArray[np.int64] | None = None,
        rows: int = ALL,
    ) -> tuple[Rows, LiveState]:
        """Logits ``[batch, new, vocab]`` of ``ids`` ``[batch, new]``, of all of them whatever ``rows`` are wanted."""
        before = state if isinstance(state, LiveState) else self._start(len(ids))
        if not before.length:
            self._begin()
        for recall in self.recalls if before.length else ():
            recall(before.cache, before.length)
        batch, new = ids.shape
        total = before.length + new
        self.mask = np.ones((batch, total), np.int64) if mask is None else mask
        self.past = before.length
        usual = np.maximum(self.mask.cumsum(axis=1) - 1, 0)[:, -new:]
        self.positions = usual if self.place is None else self.place(new, self.past, self.mask)
        self.key_positions = np.concatenate([before.positions, self.positions], axis=1)
        arguments = {
            "input_ids": self._torch.tensor(ids),
            "attention_mask": self._torch.tensor(self.mask),
            "position_ids": self._torch.tensor(self.positions),
            "use_cache": True,
            "cache" if _takes_cache(self.model) else "past_key_values": before.cache,
        }
        with self._torch.inference_mode(), quiet():
            logits = self.model(**arguments).logits
        return np.asarray(logits.float().numpy(), np.float32), LiveState(total, batch, before.cache, self.key_positions)

    def kept(self, before: State | None, after: State, ids: NDArray[np.int64], count: int) -> State:
        """The cache grows in place: only the whole of a call can be kept."""
        if count < ids.shape[1]:
            raise TypeError("transformers' cache grows in place, and cannot go back")
        return after

    def _begin(self) -> None:
        """Take dynamic RoPE back to what it is in short calls, by one."""
        if self._remembers:
            self.positions, self.is_beginning = np.zeros((1, 1), np.int64), True
            with self._torch.inference_mode(), quiet():
                self.model(input_ids=self._torch.tensor([[0]]), use_cache=False)
            self.is_beginning = False

    def _start(self, batch: int) -> LiveState:
        """With a cache that keeps every key, also of layers with a window: their mask hides what they must not see."""
        kinds = importlib.import_module("transformers.cache_utils")
        cache = kinds.DynamicCache(config=self.config)
        cache.layers = [
            kinds.DynamicLayer() if isinstance(layer, kinds.DynamicSlidingWindowLayer) else layer
            for layer in cache.layers
        ]
        return LiveState(0, batch, cache, np.zeros((batch, 0), np.int64))

    def held(self, state: State) -> tuple[Rows, ...]:
        """Keys and values, in turn, by layer."""
        assert isinstance(state, LiveState)
        return tuple(half.numpy() for layer in state.cache.layers for half in (layer.keys, layer.values))

    # Faults.

    @contextmanager
    def holding(self, tensor: str, values: NDArray[Any], start: int = 0) -> Generator[None]:
        """Within, the module that holds a tensor holds these rows from ``start`` on; one that is tied keeps its own."""
        owner = self.owner(tensor)
        assert owner is not None, tensor
        module, name = owner
        was = getattr(module, name)
        whole = was.detach().clone()
        rows = self._torch.from_numpy(np.array(values, np.float32))
        whole[start : start + len(rows)] = rows.reshape(len(rows), *whole.shape[1:])
        with self.set(module, name, self._torch.nn.Parameter(whole, requires_grad=False)):
            yield

    @contextmanager
    def set(self, thing: Any, name: str, value: Any) -> Generator[None]:
        """Within, an attribute or a submodule is another one."""
        was = getattr(thing, name)
        setattr(thing, name, value)
        try:
            yield
        finally:
            setattr(thing, name, was)

    @contextmanager
    def replacing(self, path: str, make: Callable[[Any], Any]) -> Generator[None]:
        """Within, the submodule that the text model calls ``path`` is what ``make`` makes of it."""
        parent, _, name = path.rpartition(".")
        held = self.module(parent)
        own = self._paths.get(f"{path}", path).rpartition(".")[2]
        name = name if hasattr(held, name) else own
        with self.set(held, name, make(getattr(held, name))):
            yield

    @contextmanager
    def nudged(self, seed: int) -> Generator[None]:
        """Within, every weight is a last bit greater, a last bit smaller, or as it was."""
        generator = self._torch.Generator().manual_seed(seed)
        held = [parameter.data for parameter in self.model.parameters()]
        before = [data.clone() for data in held]
        try:
            for data in held:
                way = self._torch.randint(-1, 2, data.shape, generator=generator)
                data.copy_(self._torch.nextafter(data, data * (1 + way / 2)))
            yield
        finally:
            for data, value in zip(held, before, strict=True):
                data.copy_(value)

    def identity(self) -> Any:
        """A module that does nothing."""
        return self._torch.nn.Identity()

    @contextmanager
    def placing(self, place: Placing) -> Generator[None]:
        """Within, tokens are put at other positions: (new, past, mask) -> ``[batch, new]``."""
        self.place = place
        try:
            yield
        finally:
            self.place = None

    @contextmanager
    def recalling(self, recall: Recalling) -> Generator[None]:
        """Within, what is kept from earlier calls is changed before each call: (transformers' cache, past tokens)."""
        self.recalls.append(recall)
        try:
            yield
        finally:
            self.recalls.remove(recall)

    @contextmanager
    def calling(self, module: Any, change: Callable[[Any, Any, Any], Any]) -> Generator[None]:
        """Within, what a module gives is changed by what it takes too: (module, its arguments, its output)."""
        handle = module.register_forward_hook(change)
        try:
            yield
        finally:
            handle.remove()

    @contextmanager
    def changing(self, module: Any, change: Callable[[Any], Any]) -> Generator[None]:
        """Within, what a module gives is changed: torch -> torch."""

        def hook(module: Any, args: Any, out: Any) -> Any:
            return change(out)

        handle = module.register_forward_hook(hook)
        try:
            yield
        finally:
            handle.remove()


def _layers(model: Any) -> tuple[str, Sequence[Any]]:
    """The longest list of layers below the model, and the name of the module that holds it."""
    lists = [
        (name, module)
        for name, module in model.named_modules()
        if type(module).__name__ == "ModuleList"
        and name.rpartition(".")[2] in ("layers", "h", "blocks")
        and "vision" not in name
        and "audio" not in name
    ]
    name, layers = max(lists, key=lambda each: len(each[1]))
    return name.rpartition(".")[0], layers


def _takes_cache(model: Any) -> bool:
    """transformers 5.24 calls ``cache`` what was ``past_key_values``."""
    return "cache" in inspect.signature(model.forward).parameters
