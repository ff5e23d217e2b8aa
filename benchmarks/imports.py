"""How long do the imports take, and which optional drivers do they load?"""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from time import perf_counter

from benchmarks.harness import Effort, Row, at_most, difference, interleave, main, ratio, stay_on_one_core

OPTIONAL = ("aiosqlite", "coredis", "fastapi", "httpx", "jwt", "psycopg", "pydantic", "starlette", "trio", "uvicorn")


def interpreter(statement: str) -> float:
    """Milliseconds of a whole interpreter that executes this."""
    started = perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return (perf_counter() - started) * 1e3


def rows(effort: Effort) -> Iterator[Row]:
    """Whole interpreters, of which the bare one is taken away."""
    stay_on_one_core()
    statements = {
        "bare": "pass",
        "core": "import a2core",
        "asgi": "import a2asgi",
        "starlette": "import starlette.applications, anyio",
    }
    for statement in statements.values():
        interpreter(statement)  # so that the byte code is there
    found = interleave({name: partial(interpreter, text) for name, text in statements.items()}, effort.rounds)
    core = difference(found["core"], found["bare"])
    yield Row("import a2core", "a bare interpreter", core, at_most(25), "ms")
    asgi, starlette = (
        [one - bare for one, bare in zip(found[name], found["bare"], strict=True)] for name in ("asgi", "starlette")
    )
    middle = [f"{sorted(times)[len(times) // 2]:.0f} ms" for times in (asgi, starlette)]
    yield Row(
        "import a2asgi", "import starlette, anyio", ratio(asgi, starlette), at_most(1.3), detail=" / ".join(middle)
    )
    tell = f"import a2asgi, sys; print(*[name for name in {OPTIONAL} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", tell], check=True, capture_output=True, text=True).stdout.split()
    if loaded:
        raise AssertionError(f"import a2asgi loads what is optional: {loaded}")


if __name__ == "__main__":
    sys.exit(main(rows, __doc__))
