"""``paritas families``: what can be exported, and what that rests on."""

from paritas.commands.options import Json, Quiet
from paritas.console import rows
from paritas.outcome import command


def families(quiet: Quiet = False, as_json: Json = False) -> None:
    """List the families that can be exported, with the evidence of each."""
    with command(quiet, as_json) as screen:
        from paritas.proven import proven

        record = proven()
        table = [
            {
                "model_type": name,
                **{target: f"{each.worst:.2f}" for target, each in targets.items()},
                "probes": max(len(each.probes) for each in targets.values()),
                "checkpoints": max(len(each.checkpoints) for each in targets.values()),
            }
            for name, targets in record.families.items()
        ]
        screen.table("worst difference in floors (up to 5 is rounding), over every probe", rows(table))
        ran = ", ".join(f"{name} {number}" for name, number in record.versions.items())
        screen.say(f"[dim]tiny checkpoints with every parameter random, in ONNX Runtime's own session; {ran}[/]")
        screen.result({"versions": dict(record.versions), "families": record.summary()})
