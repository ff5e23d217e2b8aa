"""Random ids: none comes twice, from whichever thread or process."""

import os
import subprocess
import sys
from threading import Thread

import pytest

from a2asgi.entropy import DRAWN_AT_ONCE, random_id

FORKING = f"""
import os
from a2asgi.entropy import random_id
print(random_id(), flush=True)
child = os.fork()
if child:
    os.waitpid(child, 0)
print(*[random_id() for _ in range({DRAWN_AT_ONCE})])
"""


def test_ids_are_128_bits_and_none_comes_twice() -> None:
    """Over several draws."""
    ids = [random_id() for _ in range(3 * DRAWN_AT_ONCE)]
    assert {32} == {len(bytes.fromhex(one).hex()) for one in ids}
    assert len(ids) == len(set(ids))


def test_threads_share_no_id() -> None:
    ids: list[str] = []

    def draw() -> None:
        for _ in range(4 * DRAWN_AT_ONCE):
            ids.append(random_id())  # noqa: PERF401 - each is drawn by itself

    threads = [Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 4 * 4 * DRAWN_AT_ONCE == len(set(ids))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_draws_its_own() -> None:
    """What its parent drew in advance is the parent's."""
    ran = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=True)
    ids = ran.stdout.split()
    assert 2 * DRAWN_AT_ONCE + 1 == len(ids) == len(set(ids))
