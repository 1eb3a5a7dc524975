"""Each policy graph against a statement of itself in numpy; its random numbers against published ones."""

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from paritas.policies.initializer import initializer
from paritas.policies.policy import Policy, begin, finish
from paritas.policies.sampler import sampler
from paritas.policies.termination import termination
from paritas.policies.threefry import threefry
from paritas.policies.updates import cache_update, last_logits, token_update
from paritas.runtime.sampling import Multinomial
from threefry import WORDS, draw, sampled
from threefry import threefry as stated

Feed = dict[str, NDArray[Any]]


def run(policy: Policy, **feed: Any) -> Feed:
    session = ort.InferenceSession(policy.bytes, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


# Random numbers.

# kat_vectors of the Random123 library, the three lines of threefry2x64 with 20 rounds: counter, key, result.
PUBLISHED = [
    ((0, 0), (0, 0), (0xC2B6E3A8C2C69865, 0x6F81ED42F350084D)),
    ((2**64 - 1,) * 2, (2**64 - 1,) * 2, (0xE02CB7C4D95D277A, 0xD06633D0893B8B68)),
    (
        (0x243F6A8885A308D3, 0x13198A2E03707344),
        (0xA4093822299F31D0, 0x082EFA98EC4E6C89),
        (0x263C7D30BB0F0AF1, 0x56BE8361D3311526),
    ),
]


def block() -> Policy:
    """The generator alone: key and counter [2] each -> its two words."""
    graph = begin()
    op = graph.op
    given = [graph.input(name, ir.DataType.UINT64, [2]) for name in ("key", "counter")]
    words = [[op.Gather(value, graph.constant(np.array(k), f"at.{k}")) for k in (0, 1)] for value in given]
    x, y = threefry(graph, (words[0][0], words[0][1]), (words[1][0], words[1][1]))
    graph.output(x, "x", ir.DataType.UINT64, [])
    graph.output(y, "y", ir.DataType.UINT64, [])
    return finish(graph, "block")


@pytest.mark.parametrize(("counter", "key", "result"), PUBLISHED, ids=["zeros", "ones", "pi"])
def test_random_numbers_are_the_published_ones(counter: WORDS, key: WORDS, result: WORDS) -> None:
    found = run(block(), key=np.array(key, np.uint64), counter=np.array(counter, np.uint64))
    assert (int(found["x"]), int(found["y"])) == result
    assert stated(key, counter) == result


# Sampler.

ROWS, VOCAB = 6, 53


def rows(**changes: Any) -> Feed:
    random = np.random.default_rng(3)
    feed: Feed = {
        "logits": random.normal(0, 1.5, (ROWS, VOCAB)).astype(np.float32),
        "temperature": np.array([1, 0.7, 1.9, 1, 0, 1], np.float32),
        "top_k": np.array([0, 7, 0, 60, 0, 1]),
        "top_p": np.array([1, 0.8, 0.95, 0.3, 1, 1], np.float32),
        "min_p": np.array([0, 0, 0.05, 0, 0, 0.5], np.float32),
        "seed": np.array([5, 5, -3, 2**62, 1, 9]),
        "counter": np.array([0, 1, 7, 2**40, 3, 4]),
        "active": np.ones(ROWS, bool),
        "done": np.zeros(ROWS, bool),
    }
    return feed | {key: np.asarray(value, feed[key].dtype) for key, value in changes.items()}


def test_the_sampler_is_what_is_stated_for_many_draws() -> None:
    session = ort.InferenceSession(sampler().bytes, providers=["CPUExecutionProvider"])
    chosen = set[int]()
    for step in range(60):
        feed = rows(counter=np.arange(ROWS) * 11 + step)
        token, counter = session.run(None, feed)
        wanted = [sampled({name: value[row] for name, value in feed.items()}) for row in range(ROWS)]
        assert token.tolist() == wanted
        assert counter.tolist() == (feed["counter"] + 1).tolist()
        chosen |= set(token.tolist())
    assert len(chosen) > 20  # the rows that draw do draw


def test_temperature_zero_and_one_token_are_greedy() -> None:
    feed = rows(temperature=[0, 0, -1, 1, 1, 1], top_k=[0, 3, 0, 1, 1, 1], min_p=np.zeros(ROWS), top_p=np.ones(ROWS))
    assert run(sampler(), **feed)["token"].tolist() == feed["logits"].argmax(1).tolist()


def test_of_equal_best_tokens_greedy_takes_the_first() -> None:
    logits = np.zeros((ROWS, VOCAB))
    logits[:, [9, 31]] = 4
    assert run(sampler(), **rows(logits=logits, temperature=np.zeros(ROWS)))["token"].tolist() == [9] * ROWS


def test_rows_that_generate_no_more_keep_their_counter() -> None:
    feed = rows(active=[1, 0, 1, 1, 1, 0], done=[0, 0, 1, 0, 1, 1])
    found = run(sampler(), **feed)
    idle = np.array([False, True, True, False, True, True])
    assert (found["token"][idle] == -1).all()
    assert (found["token"][~idle] >= 0).all()
    assert found["next_counter"].tolist() == (feed["counter"] + ~idle).tolist()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.6, 5, 1.0), (1.3, 0, 0.7), (0.9, 12, 0.6)]
)
def test_what_is_left_is_what_transformers_leaves(temperature: float, top_k: int, top_p: float) -> None:
    """The tokens that 400 draws give are those that the other statement (runtime.sampling) has, as often."""
    logits = np.random.default_rng(8).normal(0, 2, VOCAB).astype(np.float32)
    tokens, probabilities = Multinomial(temperature, top_k, top_p).distribution(logits, ())
    count = 400
    found = run(
        sampler(),
        logits=np.tile(logits, (count, 1)),
        temperature=np.full(count, temperature, np.float32),
        top_k=np.full(count, top_k),
        top_p=np.full(count, top_p, np.float32),
        min_p=np.zeros(count, np.float32),
        seed=np.full(count, 77),
        counter=np.arange(count),
        active=np.ones(count, bool),
        done=np.zeros(count, bool),
    )["token"]
    assert set(found.tolist()) <= set(tokens.tolist())
    shares = np.array([(found == token).mean() for token in tokens])
    assert np.abs(shares - probabilities).max() < 4 * (0.25 / count) ** 0.5


@pytest.mark.parametrize("knob", [{"top_p": 0.0}, {"top_p": -1.0}, {"min_p": 1.0}, {"min_p": 7.0}])
def test_the_best_token_is_never_left_out(knob: dict[str, float]) -> None:
    feed = rows(
        temperature=np.ones(ROWS),
        top_k=np.zeros(ROWS),
        top_p=np.ones(ROWS),
        min_p=np.zeros(ROWS),
    )
    feed |= {name: np.full(ROWS, value, np.float32) for name, value in knob.items()}
    assert run(sampler(), **feed)["token"].tolist() == feed["logits"].argmax(1).tolist()


def test_draws_are_evenly_spread() -> None:
    numbers = np.array([draw(11, counter) for counter in range(4096)])
    counts, _ = np.histogram(numbers, bins=16, range=(0, 1))
    assert ((counts - 256) ** 2 / 256).sum() < 37.7  # chi square of 15 degrees, one in a thousand


# The others.


def test_termination() -> None:
    feed: Feed = {
        "tokens": np.array([4, 9, 4, 7, 5, 9]),
        "eos_ids": np.array([[4, 9], [4, 9], [4, 9], [4, 9], [4, 9], [9, 4]]),
        "eos_lengths": np.array([2, 1, 2, 2, 0, 1]),
        "iteration": np.array([6]),
        "max_iterations": np.array([50, 50, 50, 7, 8, 50]),
        "active": np.array([True, True, False, True, True, True]),
    }
    hit = np.array([token in ids[:n] for token, ids, n in zip(*list(feed.values())[:3], strict=True)])
    goes_on = feed["active"] & ~(hit | (feed["iteration"] + 1 >= feed["max_iterations"]))
    found = run(termination(), **feed)
    assert found["next_active"].tolist() == goes_on.tolist() == [False, True, False, False, True, False]
    assert found["done"].tolist() == (~goes_on).tolist()
    assert found["continue"].tolist() == [True]


def test_termination_of_all_rows_ends_the_loop() -> None:
    found = run(
        termination(),
        tokens=np.array([3, 3]),
        eos_ids=np.array([[3], [-1]]),
        eos_lengths=np.array([1, 0]),
        iteration=np.array([0]),
        max_iterations=np.array([9, 1]),
        active=np.ones(2, bool),
    )
    assert found["continue"].tolist() == [False]


def test_a_row_without_end_tokens_does_not_end_at_one() -> None:
    """Its ids are there for the sake of the shape, and count for nothing."""
    found = run(
        termination(),
        tokens=np.array([-1]),
        eos_ids=np.array([[-1]]),
        eos_lengths=np.array([0]),
        iteration=np.array([0]),
        max_iterations=np.array([9]),
        active=np.ones(1, bool),
    )
    assert found["next_active"].tolist() == [True]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_last_logits(dtype: Any) -> None:
    logits = np.random.default_rng(0).normal(size=(2, 5, 7)).astype(dtype)
    kind = {np.float32: ir.DataType.FLOAT, np.float16: ir.DataType.FLOAT16}[dtype]
    found = run(last_logits(7, kind), logits=logits)["last_logits"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, logits[:, -1].astype(np.float32))


def test_token_update() -> None:
    active, done = np.array([1, 1, 0, 0], bool), np.array([0, 1, 0, 1], bool)
    found = run(
        token_update(), current=np.array([[1], [2], [3], [4]]), token=np.array([5, 6, 7, 8]), active=active, done=done
    )
    assert found["next"].tolist() == [[5], [2], [3], [4]]
    assert found["accepted"].tolist() == [1, 0, 0, 0]


def test_cache_update() -> None:
    found = run(cache_update(), attention_mask=np.ones((2, 3), np.int64), accepted=np.array([1, 0]))
    assert found["next_attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]


def test_initializer() -> None:
    states = {
        "past.0.conv": (ir.DataType.FLOAT, (6, 3)),
        "past_key_values.1.key": (ir.DataType.FLOAT16, (2, "past", 16)),
    }
    found = run(initializer(states, [1, 6]), prompt_tokens=np.array([[5, 6, 7], [8, 9, 9]]), most_tokens=np.array([40]))
    assert found["attention_mask"].tolist() == [[1, 1, 1]] * 2
    assert found["token_slot"].tolist() == [[5], [8]]
    assert found["eos_ids"].tolist() == [[1, 6]] * 2
    assert found["eos_lengths"].tolist() == [2, 2]
    assert found["max_iterations"].tolist() == [40, 40]
    assert (found["past.0.conv"].shape, found["past.0.conv"].any()) == ((2, 6, 3), False)
    assert (found["past_key_values.1.key"].shape, found["past_key_values.1.key"].dtype) == ((2, 2, 0, 16), np.float16)


def test_initializer_without_end_tokens() -> None:
    found = run(initializer({}, []), prompt_tokens=np.array([[5]]), most_tokens=np.array([4]))
    assert found["eos_ids"].shape == (1, 1)
    assert found["eos_lengths"].tolist() == [0]
