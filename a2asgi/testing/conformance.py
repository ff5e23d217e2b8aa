"""The conformance suite for stores, as a library and as the command `python -m a2asgi.testing.conformance`."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from a2asgi.stores.memory import MemoryStore
from a2asgi.stores.sqlite import SQLiteStore
from a2asgi.testing.store_bench import Bench, MakeStore, StoreClock
from a2asgi.testing.store_suite import CHECKS, DURABLE_CHECKS, Check, StoreCheckFailed, check_store, run_check

__all__ = [
    "CHECKS",
    "DURABLE_CHECKS",
    "Bench",
    "Check",
    "MakeStore",
    "StoreCheckFailed",
    "StoreClock",
    "check_store",
    "main",
    "report",
    "run_check",
]

BACKENDS = ("asyncio", "trio")
ALL: Mapping[str, Check] = {**CHECKS, **DURABLE_CHECKS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Check one of the stores on each event loop, print a line for each check, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m a2asgi.testing.conformance", description="Check a store.")
    parser.add_argument("--store", choices=("memory", "sqlite", "postgres", "redis"), required=True)
    parser.add_argument(
        "--path", type=Path, metavar="FILE", help="make the SQLite files beside this one, and remove them afterwards"
    )
    parser.add_argument(
        "--url", metavar="URL", help="the Postgres database, or the Redis server: what is made there is removed"
    )
    parser.add_argument("--check", nargs="+", metavar="NAME", choices=ALL, help="run these checks and no others")
    options = parser.parse_args(arguments)
    chosen: Mapping[str, Check] = ALL if options.check is None else {name: ALL[name] for name in options.check}
    if options.store == "memory":
        return report(_memory, [check for name, check in chosen.items() if name in CHECKS])
    if options.store == "postgres":
        if options.url is None:
            parser.error("--store postgres needs --url postgresql://user:password@host:5432/database")
        from a2asgi.testing.postgres_bench import PostgresBench  # noqa: PLC0415 - only this store needs psycopg

        with PostgresBench(options.url) as bench:
            return report(bench.make_store, list(chosen.values()))
    if options.store == "redis":
        if options.url is None:
            parser.error("--store redis needs --url redis://user:password@host:6379")
        from a2asgi.testing.redis_bench import RedisBench  # noqa: PLC0415 - as above, and coredis

        with RedisBench(options.url) as redis:
            return report(redis.make_store, list(chosen.values()))
    beside: Path | None = options.path
    if beside is not None:
        beside.parent.mkdir(parents=True, exist_ok=True)
    prefix, folder = ("a2-", None) if beside is None else (f"{beside.name}-", beside.parent)
    with TemporaryDirectory(prefix=prefix, dir=folder) as made:

        def sqlite(clock: StoreClock, name: str) -> SQLiteStore:
            return SQLiteStore(Path(made) / f"{name}.db", clock=clock)

        return report(sqlite, list(chosen.values()))


def report(make_store: MakeStore, checks: Sequence[Check]) -> int:
    """Run these checks on each event loop, print a line for each and one at the end; 1 if any failed, else 0."""
    passed = failed = 0
    for backend in BACKENDS:
        for check in checks:
            try:
                anyio.run(run_check, check, make_store, backend=backend)
            except StoreCheckFailed as failure:
                failed += 1
                _print(f"{backend:8}FAILED  {failure}")
            else:
                passed += 1
                _print(f"{backend:8}ok      {check.__name__}")
    _print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _memory(clock: StoreClock, name: str) -> MemoryStore:
    del name  # what it holds is its own
    return MemoryStore(clock=clock)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
