"""What does a deduplication id cost beside the hash that it is?"""

import sys
from collections.abc import Iterator
from hashlib import sha256

from a2core import derive_id
from benchmarks.harness import Effort, Row, at_most, interleave, main, per_call, ratio, span, stay_on_one_core

PARTS = ("a2:qstash-task:v1", "https://example.com/api/a2/scheduler", "orders", "order-1001", 1_700_000_000_000)


def rows(effort: Effort) -> Iterator[Row]:
    """One id of five parts."""
    stay_on_one_core()
    text = repr(list(PARTS)).encode()
    calls = effort.of(20_000)
    variants = {
        "ours": per_call(lambda: derive_id(*PARTS), calls),
        "floor": per_call(lambda: sha256(text).hexdigest(), calls),
    }
    found = interleave(variants, effort.rounds)
    detail = f"{span(found['ours'])} / {span(found['floor'])}"
    yield Row("deduplication id", "one SHA-256", ratio(found["ours"], found["floor"]), at_most(3), detail=detail)


if __name__ == "__main__":
    sys.exit(main(rows, __doc__))
