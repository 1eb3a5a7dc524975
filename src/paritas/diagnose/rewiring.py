"""The reference wired as the graph is: a module, or a layer, is given another sum of what was there before it."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

from paritas.audit.finding import layer_of
from paritas.diagnose.case import Case
from paritas.diagnose.extract import extract
from paritas.diagnose.session import Session
from paritas.diagnose.streams import Sum
from paritas.diagnose.sums import Known
from paritas.errors import Invalid
from paritas.verify.loading import require_torch


@dataclass(frozen=True)
class Opaque:
    """A value of the graph that the reference has not, as the graph computes it from values that it has.

    Attributes:
        name: in a sum.
        value: of the graph.
        inputs: value of the graph -> the reference's name for it.
        session: that computes it.
    """

    name: str
    value: str
    inputs: Mapping[str, str]
    session: Session

    def __call__(self, given: Mapping[str, Any]) -> Any:
        """Torch ``[batch, tokens, features]``, of the reference's tensors by name."""
        torch, _ = require_torch()
        fed = {value: given[name].numpy() for value, name in self.inputs.items()}
        made = self.session.run(fed, list(self.session.types))
        shape = next(iter(given[name] for name in self.inputs.values())).shape
        return torch.from_numpy(next(iter(made.values()))).reshape(*shape[:-1], -1)


def opaque(case: Case, graph: Known, name: str) -> Opaque | None:
    """The value that a sum calls ``name``; None if it hangs on more than is known."""
    value = name[1:-1]
    part = extract(case.view.proto, [each for each in graph.names if each != value], [value])
    taken = [each.name for each in part.proto.graph.input]
    if not taken or not all(each in graph.names for each in taken):
        return None
    try:
        session = Session(part.proto, case.package.model)
    except Invalid:
        return None
    return Opaque(name, value, {each: graph.names[each] for each in taken}, session)


@contextmanager
def rewired(case: Case, takers: Sequence[str], total: Sum, strange: Sequence[Opaque]) -> Generator[None]:
    """Within, modules or layers of the reference take another sum.

    Args:
        case: with the live reference.
        takers: paths of modules, or the name of what a layer takes.
        total: the sum.
        strange: values of it that the graph computes.
    """
    live, kept = case.live, dict[str, Any]()
    computed = {each.name: each for each in strange}
    names = {name for name in total if name not in computed} | {n for each in strange for n in each.inputs.values()}

    def keep(name: str) -> Any:
        def hook(_: Any, args: Any, options: dict[str, Any], *out: Any) -> None:
            given = next(iter(out)) if out else args[0] if args else options["hidden_states"]
            kept[name] = cast(Any, given)[0] if isinstance(given, tuple) else given

        return hook

    def gives(_: Any, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        terms = [(computed[name](kept) if name in computed else kept[name]) * f for name, f in total.items()]
        new = terms[0]
        for term in terms[1:]:
            new = new + term
        old = args[0] if args else options["hidden_states"]
        new = new.reshape(old.shape)
        if args:
            return (new, *args[1:]), options
        return args, {**options, "hidden_states": new}

    with ExitStack() as stack:
        for name in names:
            if name.endswith(".in"):
                handle = live.layers[layer_of(name) or 0].register_forward_pre_hook(keep(name), with_kwargs=True)
            else:
                module = live.module(name)
                assert module is not None, name
                handle = module.register_forward_hook(keep(name), with_kwargs=True)
            stack.callback(handle.remove)
        for taker in takers:
            module = live.layers[layer_of(taker) or 0] if taker.endswith(".in") else live.module(taker)
            assert module is not None, taker
            stack.callback(module.register_forward_pre_hook(gives, with_kwargs=True).remove)
        yield
