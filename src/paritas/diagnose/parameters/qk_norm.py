"""Norms of queries and keys that stand on the wrong side of the rotation."""

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager

from paritas.audit.sites import NORMS, Site
from paritas.diagnose.attention_roles import back
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit
from paritas.diagnose.live import Call


def qk_norm_differences(case: Case) -> Iterator[Difference]:
    """Every layer that rotates before it normalises, where the reference normalises first."""
    for site in case.sites:
        attention = case.live.attentions.get(site.layer)
        if attention is None or not hasattr(attention, "q_norm") or not hasattr(attention, "k_norm"):
            continue
        steps = site.q.steps
        if "norm" in steps and "rotary" in steps and steps.index("rotary") < steps.index("norm"):
            yield Difference(
                parameter="qk-norm-order",
                where=f"model.layers.{site.layer}.self_attn",
                layer=site.layer,
                package="after the rotation",
                reference="before the rotation",
                fact="queries and keys are normalised after they are rotated, in the reference before",
                breaks=lambda site=site: _after(case, site),
                repairs=lambda edit, site=site: _before(edit, case, site),
            )


@contextmanager
def _after(case: Case, site: Site) -> Generator[None]:
    """Within, the reference rotates first."""
    attention = case.live.attentions[site.layer]
    norms = attention.q_norm, attention.k_norm

    def change(call: Call) -> None:
        call.query, call.key = norms[0](call.query), norms[1](call.key)

    with ExitStack() as stack:
        for name in ("q_norm", "k_norm"):
            stack.enter_context(case.live.set(attention, name, case.live.identity()))
        stack.enter_context(case.live.attending({site.layer: change}))
        yield


def _before(edit: Edit, case: Case, site: Site) -> None:
    """project, rotate, norm, attend -> project, norm, rotate, attend."""
    for place, trail in enumerate((site.q, site.k)):
        if trail is None or trail.rotary is None:
            continue
        rotate = edit.node(trail.rotary.output[0])
        attend = edit.node(site.node.output[0])
        chain = [edit.node(node.output[0]) for node in back(case.view, site.node.input[place])]
        first = next(node for node in chain if rotate.output[0] in node.input)
        assert any(node.op_type in NORMS for node in chain)
        joined = attend.input[place]
        first.input[list(first.input).index(rotate.output[0])] = rotate.input[0]
        rotate.input[0] = joined
        attend.input[place] = rotate.output[0]
        edit.lines.append(f"{rotate.op_type} {rotate.name or rotate.output[0]}: moved behind the norm of its heads")
