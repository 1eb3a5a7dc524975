"""Measuring packages: the order, the control, what is called a difference, and one small run."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from rich.console import Console

from checkpoints import export, paritas, refused, save_llama
from paritas.bench import entrant, peers, report, statistics, timing
from paritas.bench.entrant import Entrant
from paritas.bench.run import bench
from paritas.bench.task import Figures, Task
from paritas.errors import Invalid, ParitasError
from paritas.runtime.package import open_package
from paritas.runtime.session import RawSession

CPU = Task(decode=(8,), prefill=(16,), steps=4, repeats=1, clock="cpu")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    assert export(save_llama(folder / "model"), folder / "out").exit_code == 0
    return folder / "out"


# What is a difference.


def cost(*values: float) -> list[Figures]:
    return [{"decode@128": value} for value in values]


@pytest.mark.parametrize(
    ("first", "control", "other", "different"),
    [
        ((100, 100, 100), (100, 104, 97), (95, 96, 97), True),  # 4 % faster, and the control strays by less
        ((100, 100, 100), (100, 106, 97), (95, 96, 97), False),  # as far as one pair of the control
        ((100, 100, 100), (94, 100, 100), (95, 96, 97), False),  # the control strays to the other side
        ((100, 200, 400), (101, 199, 404), (80, 160, 320), True),  # pair by pair, whatever the machine does meanwhile
        ((100, 100, 100), (100, 100, 100), (100, 100, 100), False),
        ((100, 100, 100), (101, 101, 101), (100, 100, 60), False),  # one lucky cycle moves no median
    ],
)
def test_a_difference_lies_beyond_what_a_package_differs_from_itself(
    first: Sequence[float], control: Sequence[float], other: Sequence[float], different: bool
) -> None:
    chance = statistics.spread(cost(*first), cost(*control))
    found = statistics.ratios(cost(*first), cost(*other), chance)["decode@128"]
    assert found.different is different
    assert found.least <= found.median <= found.most


def test_a_ratio_above_one_costs_less() -> None:
    (found,) = statistics.ratios(cost(100, 100), cost(50, 40), {"decode@128": 1.0}).values()
    assert (found.median, found.least, found.most) == (2.25, 2.0, 2.5)


def test_what_one_of_them_lacks_is_not_compared() -> None:
    assert statistics.ratios(cost(1, 1), [{}, {}], {"decode@128": 1.0}) == {}


def test_each_figure_is_what_nine_tenths_do_not_undercut() -> None:
    assert timing.low([5.0, 1.0]) == 1.0
    assert timing.low([float(value) for value in range(100, 70, -1)]) == 74.0


# The order.


def test_each_second_cycle_goes_backwards_and_the_first_is_its_own_control() -> None:
    asked: list[str] = []

    def measured(name: str) -> Entrant:
        return Entrant(name, "", lambda task: asked.append(name) or {"decode@8": 1.0 + len(asked)})

    result = bench([measured("a"), measured("b")], CPU, 2)
    assert asked == ["a", "b", "a", "a", "b", "a"]
    assert [[each["decode@8"] for each in figures] for figures in result.figures] == [[2, 7], [3, 6], [4, 5]]
    assert result.spread == pytest.approx({"decode@8": 2.0})


def test_wall_times_beside_other_programs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: 60.0)
    quick = Entrant("a", "", lambda task: {"decode@8": 1.0})
    with pytest.raises(ParitasError, match="bench-machine-busy"):
        bench([quick], Task(), 2)
    assert bench([quick], CPU, 2).machine.busy == 0.6
    assert bench([quick], Task(), 2, busy_ok=True).machine.busy == 0.6


# What is measured.


class Sleeper:
    """Costs what it is told to."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def start(self, tokens: int) -> int:
        time.sleep(self._seconds)
        return tokens

    def step(self, state: int) -> int:
        time.sleep(self._seconds)
        return state + 1


def test_a_clock_runs_while_the_model_does() -> None:
    task = Task(decode=(8,), prefill=(16,), steps=10, repeats=2)
    slow, fast = (timing.measure(lambda given, s=s: Sleeper(s), task, disk=7) for s in (0.02, 0.005))
    for name in ("decode@8", "prefill@16"):
        assert 0.02 <= slow[name] < 4 * 0.02
        assert slow[name] > 2 * fast[name] > 2 * 0.005
    assert slow["disk"] == 7


def test_a_package_is_timed_where_its_context_has_room(package: Path) -> None:
    task = Task(decode=(8, 128), prefill=(16, 512), steps=4, repeats=1, clock="cpu")
    figures = entrant.package("ours", package).measure(task)
    assert set(figures) == {"decode@8", "prefill@16", "load", "loaded", "peak", "disk"}
    assert figures["disk"] == sum((package / name).stat().st_size for name in ("model.onnx", "model.onnx.data"))
    assert 0 < figures["loaded"] <= figures["peak"] < 500 << 20
    assert figures["decode@8"] < figures["load"]


def test_what_is_timed_computes_what_is_verified(package: Path) -> None:
    """Caches in place, and caches that grow."""
    opened, ids = open_package(package), np.random.default_rng(0).integers(0, 250, (1, 24))
    growing, in_place = RawSession(opened, threads=1), RawSession(opened, threads=1, capacity=32)
    one = two = None
    for start, stop in ((0, 12), (12, 13), (13, 20), (20, 24)):
        wanted, one = growing.forward(ids[:, start:stop], one)
        found, two = in_place.forward(ids[:, start:stop], two)
        assert np.array_equal(found, wanted)
    assert one is not None
    assert two is not None
    assert all(two.in_place)
    assert two.caches[0].shape()[2] == 32
    assert all(np.array_equal(a, b) for a, b in zip(growing.held(one), in_place.held(two), strict=True))
    two = in_place.kept(None, two, ids[:, 20:24], 1)
    wanted, _ = growing.forward(ids[:, 21:22], growing.kept(None, one, ids[:, 20:24], 1))
    assert np.array_equal(in_place.forward(ids[:, 21:22], two)[0], wanted)
    with pytest.raises(Invalid, match="graph-room"):
        in_place.forward(np.zeros((1, 33), np.int64))


def test_ort_genai_is_measured_too(package: Path) -> None:
    figures = entrant.package("ours", package).measure(replace(CPU, runtime="genai"))
    assert set(figures) == {"decode@8", "prefill@16", "load", "loaded", "peak", "disk"}


def test_the_command_measures(package: Path) -> None:
    words = ["--clock", "cpu", "--decode", "8", "--prefill", "16", "--steps", "4", "--cycles", "2", "--json"]
    done = paritas("bench", str(package), str(package), *words)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    first, second = told["entrants"]
    assert len(first["figures"]) == len(told["control"]["figures"]) == 2
    assert set(second["against_first"]) == set(told["control"]["spread"]) >= {"decode@8", "prefill@16", "load"}
    assert second["against_first"]["disk"] == {"median": 1.0, "least": 1.0, "most": 1.0, "different": False}
    assert told["task"]["threads"] == 1
    assert told["machine"]["runtimes"]["onnxruntime"]


# Peers.


def test_transformers_is_measured_as_a_package_is(tmp_path: Path) -> None:
    checkpoint = save_llama(tmp_path / "model")
    (peer,) = peers.entrants("transformers", str(checkpoint), None, tmp_path)  # type: ignore[arg-type]
    figures = peer.measure(CPU)
    assert set(figures) == {"decode@8", "prefill@16", "load", "loaded", "peak", "disk"}


LLAMA_BENCH = """#!{python}
import json, sys
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert words["-t"] == "1" and words["-ngl"] == "0" and words["-o"] == "json"
prompt, new, depth = int(words["-p"]), int(words["-n"]), int(words.get("-d", 0))
samples = [(prompt + new + depth) * 1_000_000] * int(words["-r"])
print(json.dumps([{{"n_prompt": prompt, "n_gen": new, "n_depth": depth, "samples_ns": samples}}]))
"""


def test_llama_bench_is_read_as_it_prints(tmp_path: Path) -> None:
    program = tmp_path / "llama-bench"
    program.write_text(LLAMA_BENCH.format(python=sys.executable))
    program.chmod(0o755)
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF" + bytes(60))
    (peer,) = peers.entrants(f"llama.cpp={program}", str(file), None, tmp_path)  # type: ignore[arg-type]
    figures = peer.measure(Task(decode=(8,), prefill=(16,), steps=4, repeats=2))
    assert figures == pytest.approx({"disk": 64, "prefill@16": 0.016, "decode@8": 0.003})
    with pytest.raises(ParitasError, match="bench-peer-cannot"):
        peer.measure(CPU)


@pytest.mark.parametrize(
    ("words", "code", "fragment"),
    [
        (("--against", "buildr"), "option-unknown", "builder"),
        (("--against", "builder"), "bench-peer-needs-model", "--model CHECKPOINT"),
        (("--against", "llama.cpp=no-such-program", "--model", "model.gguf"), "bench-peer-missing", "no-such-program"),
        (("--against", "mobius", "--model", "model"), "bench-peer-missing", "pip install mobius-onnx"),
        (("--against", "builder", "--model", "model.gguf"), "bench-peer-cannot", "folders"),
        (("--against", "llama.cpp=true", "--model", "model"), "bench-peer-cannot", "FILE.gguf"),
        (("--clock", "sundial"), "option-unknown", "wall"),
        (("--cycles", "1"), "usage-wrong", "cycles"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_the_work(
    package: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    code: str,
    fragment: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    save_llama(tmp_path / "model")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    refused(paritas("bench", str(package), *words), code, fragment)


def test_a_peer_that_makes_no_package_says_why(package: Path, tmp_path: Path, make_peer: Callable[[str], str]) -> None:
    python = make_peer("print('ValueError: no such model'); raise SystemExit(1)")
    with pytest.raises(Invalid, match=r"bench-peer-failed: builder made no package.*no such model"):
        list(peers.entrants(f"builder={python}", str(save_llama(tmp_path / "model")), open_package(package), tmp_path))


@pytest.fixture
def make_peer(tmp_path: Path) -> Callable[[str], str]:
    """A Python in which a program stands for every module that is run."""

    def make(program: str) -> str:
        file = tmp_path / "python"
        file.write_text(f"#!{sys.executable}\nimport sys\nif sys.argv[1] == '-c': sys.exit(0)\n{program}\n")
        file.chmod(0o755)
        return str(file)

    return make


def test_a_process_that_dies_is_told(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"bench-process-failed: .* ended with 3: out of luck"):
        entrant.output([sys.executable, "-c", "import sys; sys.stderr.write('out of luck'); sys.exit(3)"], "it", 1)


def test_what_a_package_is_refused_for_in_the_process_is_told_here(tmp_path: Path) -> None:
    task: Any = CPU
    with pytest.raises(ParitasError, match="package-missing"):
        entrant.package("it", tmp_path / "nowhere").measure(task)


def test_equal_settings_are_read_out_of_the_graph(package: Path, tmp_path: Path) -> None:
    recipe = "block=16,symmetric=no,accuracy=1"
    model = save_llama(tmp_path / "model")
    assert export(model, tmp_path / "int4", "--dtype", "int4", "--quant", recipe, "--logits", "last").exit_code == 0
    assert peers.settings(open_package(tmp_path / "int4")) == peers.Settings("int4", 16, False, 1, True)
    assert peers.settings(open_package(package)) == peers.Settings("fp32", last=True)


def test_the_table_has_a_row_a_cost_and_says_what_is_chance() -> None:
    first = [{"decode@8": 0.002, "disk": 1 << 20}, {"decode@8": 0.0021, "disk": 1 << 20}]
    entrants = [Entrant("a", "", iter_of([*first[:1], *first[:1], *first[1:], *first[1:]]))]
    entrants.append(Entrant("b", "half as slow", iter_of([{"decode@8": 0.001, "disk": 1 << 20}] * 2)))
    result = bench(entrants, Task(decode=(8,), prefill=(4096,), clock="cpu"), 2)
    console = Console(width=120)
    with console.capture() as shown:
        console.print(report.table(result))
    rows = {line.split("  ")[0].strip(): line for line in shown.get().splitlines()}
    assert "2.05 ms" in rows["decode@8"]
    assert "2.05x [2.00-2.10]" in rows["decode@8"]
    assert rows["on disk"].split()[-2] == "="
    assert report.legend(result)[1] == "B  b (half as slow)"
    assert report.legend(result)[-1] == "-  does not fit the context: prefill@4096; decoding takes 27 tokens more"


def iter_of(figures: Sequence[Figures]) -> Callable[[Task], Figures]:
    following = iter(figures)
    return lambda task: next(following)
