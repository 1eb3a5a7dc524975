"""The sampler of the policies and its random numbers, stated in Python and numpy."""

from collections.abc import Mapping
from typing import Any

import numpy as np

WORDS = tuple[int, int]
ALL = 2**64 - 1
ROTATIONS = (16, 42, 12, 31, 16, 32, 24, 21)


def threefry(key: WORDS, counter: WORDS) -> WORDS:
    """Threefry-2x64-20 (Salmon et al., SC 2011, section 3.4 with the constants of its table 2)."""
    keys = (*key, 0x1BD11BDAA9FC1A22 ^ key[0] ^ key[1])
    x, y = (counter[0] + keys[0]) & ALL, (counter[1] + keys[1]) & ALL
    for number in range(20):
        x = (x + y) & ALL
        bits = ROTATIONS[number % 8]
        y = (((y << bits) | (y >> (64 - bits))) & ALL) ^ x
        if number % 4 == 3:
            turn = number // 4 + 1
            x = (x + keys[turn % 3]) & ALL
            y = (y + keys[(turn + 1) % 3] + turn) & ALL
    return x, y


def draw(seed: int, counter: int) -> float:
    """In [0, 1), of 53 bits."""
    return (threefry((seed & ALL, 0), (counter & ALL, 0))[0] >> 11) * 2.0**-53


def sampled(row: Mapping[str, Any]) -> int:
    """The token of one row."""
    logits = row["logits"]
    if row["temperature"] <= 0:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")
    scores = logits[order].astype(np.float64) / np.float64(row["temperature"])
    if 0 < row["top_k"] < len(scores):
        scores = np.where(scores >= scores[row["top_k"] - 1], scores, -np.inf)
    powers = np.exp(scores - scores[0])
    probabilities = powers / powers.sum()
    before = np.concatenate([[0.0], np.cumsum(probabilities)[:-1]])
    if row["top_p"] < 1:
        probabilities[before >= max(float(row["top_p"]), 2.0**-1000)] = 0
    probabilities[probabilities < probabilities[0] * min(float(row["min_p"]), 1.0)] = 0
    sums = np.cumsum(probabilities)
    return int(order[np.flatnonzero(sums > draw(int(row["seed"]), int(row["counter"])) * sums[-1])[0]])
