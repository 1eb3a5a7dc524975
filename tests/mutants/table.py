"""What came of the corpus: as a table on a terminal, and as a page of the documentation. Every miss has its reason."""

from collections import Counter
from collections.abc import Iterator, Sequence

from mutants import MUTANTS, RIGHT
from mutants.scoring import STEPS, Score


def report(mutants: Sequence[Score], controls: Sequence[Score]) -> str:
    """The table, the misses, the false alarms."""
    lines: list[str] = []
    if mutants:
        lines += [f"{'':32}{'all':>5}" + "".join(f"{step:>16}" for step in STEPS)]
        for name, scores in _rows(mutants):
            lines += [f"{name:32}{len(scores):>5}" + "".join(f"{each:>16}" for each in _reached(scores))]
        lines += ["", "Misses", *(f"  {_miss(score)}" for score in mutants if _missed(score))]
    if controls:
        alarms = [score for score in controls if score.detected]
        lines += ["", f"False alarms: {len(alarms)} of {len(controls)} right packages", _examined(controls)]
        lines += [f"  {score.name}: {score.verdict} {score.reason}" for score in alarms]
    return "\n".join([*lines, "", f"{_seconds(mutants, controls):,.0f} seconds of a CPU"])


def page(mutants: Sequence[Score], controls: Sequence[Score], command: str) -> str:
    """Markdown.

    Args:
        mutants, controls: what came of each.
        command: that prints the page.
    """
    return (
        "\n".join([*_head(mutants, controls, command), *_table(mutants), *_misses(mutants), *_alarms(controls)]) + "\n"
    )


def _head(mutants: Sequence[Score], controls: Sequence[Score], command: str) -> Iterator[str]:
    every = [MUTANTS[score.name] for score in mutants]
    kinds, blind = {each.kind for each in every}, {each.kind for each in every if each.blind}
    checkpoints, sources = {each.checkpoint for each in every}, {each.source for each in every}
    yield "# How far a diagnosis is right"
    yield ""
    yield f"Written by `{command}`; {_seconds(mutants, controls):,.0f} seconds of a CPU."
    yield ""
    yield f"{len(every)} wrong packages of {len(kinds)} kinds of conversion faults, on {len(checkpoints)} tiny"
    yield f"random checkpoints, in graphs of {len(sources)} exporters (`tests/mutants`). {len(blind)} kinds are a"
    yield "blind set: they were written without knowledge of what `diagnose` looks for. A fault is *detected* if"
    yield "`verify` is red, *localised* if what is wrong by itself lies where the fault acts and there alone, *named*"
    yield "if the causes are the fault and nothing else, *proved* if they are so both ways and no smaller set does,"
    yield "*repaired* if the repaired package is proven."
    yield ""


def _table(mutants: Sequence[Score]) -> Iterator[str]:
    yield f"| topic | all | {' | '.join(STEPS)} |"
    yield f"|---|--:|{'--:|' * len(STEPS)}"
    for name, scores in _rows(mutants):
        yield f"| {name} | {len(scores)} | {' | '.join(_reached(scores))} |"
    yield ""


def _misses(mutants: Sequence[Score]) -> Iterator[str]:
    missing = [score for score in mutants if _missed(score)]
    yield f"## The {len(missing)} that did not come all the way"
    yield ""
    yield "| wrong package | not | floors | causes | why |"
    yield "|---|---|--:|---|---|"
    for score in missing:
        name = f"{score.name}{' (blind)' if score.blind else ''}"
        floors = "" if score.floors is None else f"{score.floors:,.0f}"
        codes = ", ".join(f"`{code}`" for code in dict.fromkeys(score.codes)) or "none"
        yield f"| {name} | {', '.join(_missed(score))} | {floors} | {codes} | {_cell(why(score))} |"
    yield ""


def _alarms(controls: Sequence[Score]) -> Iterator[str]:
    alarms = [score for score in controls if score.detected]
    yield "## False alarms"
    yield ""
    yield f"{len(alarms)} of {len(controls)} right packages. {_examined(controls)}"
    if alarms:
        yield ""
        yield "| right package | verdict | what was said |"
        yield "|---|---|---|"
        yield from (f"| {score.name} | {score.verdict} | {_cell(score.reason)} |" for score in alarms)


def why(score: Score) -> str:
    """The reason of a miss."""
    parts = [score.reason]
    if not score.detected:
        parts.append("verify does not see it")
    if score.codes and not score.named:
        parts.append("another name, or a cause too many or too few")
    if not score.localised:
        parts.append(f"elsewhere: {', '.join(score.strays[:3])}" if score.strays else "no region is wrong by itself")
    return "; ".join(filter(None, parts)) or "the repaired package is not proven"


def _examined(controls: Sequence[Score]) -> str:
    """What the clean exports are."""
    clean = [RIGHT[score.name] for score in controls if score.clean]
    dtypes = Counter(each.dtype if each.rounded is None else "rounded by others" for each in clean)
    words = ", ".join(f"{count} {dtype}" for dtype, count in dtypes.most_common())
    checkpoints = len({each.checkpoint for each in clean})
    return (
        f"{len(clean)} of them are clean exports of {checkpoints} checkpoints ({words}), of which every parameter and "
        "every region was read too: no suspect, no cause and no region that is wrong by itself is allowed. The others "
        "are graphs that compute the same in another way."
    )


def _rows(mutants: Sequence[Score]) -> Iterator[tuple[str, Sequence[Score]]]:
    """By topic, then all, then the blind set."""
    for topic in dict.fromkeys(score.topic for score in mutants):
        yield topic, [score for score in mutants if score.topic == topic]
    yield "all", mutants
    yield "blind set", [score for score in mutants if score.blind]


def _reached(scores: Sequence[Score]) -> list[str]:
    """Of each step, the count and parts of a hundred."""
    counts = [sum(getattr(score, step) for score in scores) for step in STEPS]
    return [f"{count} ({count / len(scores):.0%})" if scores else "-" for count in counts]


def _missed(score: Score) -> list[str]:
    return [step for step in STEPS if not getattr(score, step)]


def _miss(score: Score) -> str:
    blind = " (blind)" if score.blind else ""
    floors = "" if score.floors is None else f"{score.floors:,.0f} floors; "
    found = f"causes {', '.join(score.codes) or 'none'}; {len(score.sources)} sources"
    return f"{score.name}{blind}: not {', '.join(_missed(score))}; {floors}{found}; {why(score)}"


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("\n", " ")


def _seconds(*every: Sequence[Score]) -> float:
    return sum(sum(score.seconds.values()) for scores in every for score in scores)
