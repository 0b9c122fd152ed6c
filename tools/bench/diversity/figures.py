"""How varied several outputs of one prompt are: distinct-n, self-BLEU and entropy.

* distinct-n (Li et al., arXiv 1510.03055): the share of the n-grams of all outputs that differ from each other. More is
  more varied.
* self-BLEU (Zhu et al., arXiv 1802.01886): BLEU of an output with the others as its references, averaged. Less is more
  varied.
* entropy: of the frequencies of tokens in all outputs, in nats. More is more varied.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain

Ids = Sequence[int]


def figures(outputs: Sequence[Ids]) -> dict[str, float]:
    """All figures of at least two outputs, by name."""
    return {
        "distinct_1": distinct(outputs, 1),
        "distinct_2": distinct(outputs, 2),
        "self_BLEU": self_bleu(outputs),
        "entropy": entropy(outputs),
    }


def distinct(outputs: Sequence[Ids], n: int) -> float:
    """Share of all outputs' n-grams that differ from each other; 0 if no output has `n` units."""
    grams = [tuple(output[i : i + n]) for output in outputs for i in range(len(output) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0


def self_bleu(outputs: Sequence[Ids]) -> float:
    """Mean BLEU-4 of an output with all others as references; counts of 0 are smoothed to 0.1 (NLTK's method 1)."""
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    smoothed = SmoothingFunction().method1
    texts = [list(output) for output in outputs]
    scores = [
        sentence_bleu(texts[:i] + texts[i + 1 :], text, smoothing_function=smoothed) for i, text in enumerate(texts)
    ]
    return math.fsum(scores) / len(scores)


def entropy(outputs: Sequence[Ids]) -> float:
    """Entropy of the frequencies of units in all outputs together, in nats."""
    counts = Counter(chain.from_iterable(outputs))
    total = counts.total()
    return -math.fsum(n / total * math.log(n / total) for n in counts.values())
