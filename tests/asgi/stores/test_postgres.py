"""The Postgres store: conformance, locks, what cannot be stored, schemas, poolers, and what it tells of its URL."""

import logging
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import anyio
import psycopg
import pytest

from a2asgi import ConfigurationError, PostgresStore, StoreBroken, StoreUnavailable
from a2asgi.ports import Decide, SessionKey, Store
from a2asgi.stores import sql
from a2asgi.stores.dialect import listed
from a2asgi.stores.postgres import CLAIM_WAKES, DIALECT
from a2asgi.testing import check_store
from a2asgi.testing.conformance import CHECKS, DURABLE_CHECKS, main, run_check
from a2asgi.testing.postgres_bench import PostgresBench
from a2asgi.testing.store_bench import Opened, appending_as, together
from a2core import Ending, EndingKind, Entry, Needs, Plan, Snapshot, WakeAt, WorkItem
from tests.asgi.stores.calls import KEY, OTHER, Gate, append, failing_with, hold, log_of, waiting_for_a_lock
from tests.asgi.stores.proxies import pooler
from tests.asgi.stores.servers import operator


@pytest.fixture
def url(bench: PostgresBench) -> str:
    """A database of the test's own."""
    return bench.url("a2_of_one_test")


# ── conformance ──────────────────────────────────────────────────────────────────────────


async def test_the_postgres_store_conforms(bench: PostgresBench) -> None:
    assert [*CHECKS, *DURABLE_CHECKS] == await check_store(bench.make_store, durable=True)


async def test_it_conforms_behind_a_pooler_that_gives_each_transaction_another_session(postgres: str) -> None:
    with pooler(postgres, sessions=3) as between, PostgresBench(between.url) as bench:
        for check in [*CHECKS.values(), *DURABLE_CHECKS.values()]:
            await run_check(check, bench.make_store)
        assert between.transactions > len(CHECKS)


def test_the_command_checks_it(postgres: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--store", "postgres", "--url", postgres, "--check", "check_lookups", "check_runs_outlive_their_store"]
    assert 0 == main(options)
    assert "4 passed, 0 failed" == capsys.readouterr().out.splitlines()[-1]
    with pytest.raises(SystemExit):
        main(options[:2])
    assert "--store postgres needs --url postgresql://" in capsys.readouterr().err


# ── long sessions ────────────────────────────────────────────────────────────────────────


async def test_what_a_decision_needs_is_found_without_a_look_at_a_long_session(url: str) -> None:
    """Also once the server has counted its rows and plans by that: a snapshot of 20,000 open events reads a few."""
    async with Opened(PostgresStore(url)) as store:
        await append(store, "e1")
    steps = listed(sql.transact(DIALECT, KEY, Needs(("e1",), (1,), heads=True, behind=1), deciding, lambda: 0))
    next(steps)
    with operator(url) as console:
        [[session]] = console.execute("SELECT id FROM a2_sessions").fetchall()
        console.execute(
            "INSERT INTO a2_log (session, seq, id, type, payload, created_at_ms)"
            " SELECT %s, n, 'e' || n, 'order', '{}', 0 FROM generate_series(2, 20000) n",
            (session,),
        )
        console.execute(
            "INSERT INTO a2_work (session, seq, lane, head, attempt, failures, lost, ready_at_ms)"
            " SELECT %s, n, CASE WHEN n = 20000 THEN 'e1' ELSE 'other-' || n %% 40 END, 0, 0, 0, 0, 0"
            " FROM generate_series(2, 20000) n",
            (session,),
        )
        console.execute("ANALYZE a2_log")
        console.execute("ANALYZE a2_work")
        statements = steps.send([[(session, 20_000, None, None)]])
        for statement in statements:
            explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.sql.replace('?', '%s')}"
            [[[found]]] = console.execute(explain, statement.params).fetchall()
            assert rows_read(found["Plan"]) <= 10, statement.sql
    assert 4 == len(statements)


async def test_wake_ups_are_found_without_a_look_at_those_that_wait(url: str) -> None:
    """Of 20,000 that are due and as many that are not: what reads them reads the first of each contract."""
    async with Opened(PostgresStore(url)):
        pass
    with operator(url) as console:
        console.execute(
            "INSERT INTO a2_sessions (contract, session_id, last_seq, wake_at_ms)"
            " SELECT 'c' || n %% 2, n, 0, CASE WHEN n > 20000 THEN 4000000000000 ELSE 0 END + n"
            " FROM generate_series(1, %s) n",
            (40_000,),
        )
        for command in ("SELECT 1", "ANALYZE a2_sessions"):
            console.execute(command.encode())
            explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {CLAIM_WAKES}"
            [[[found]]] = console.execute(explain, (["c0", "c1", "none"], 0, 5, 5, 0)).fetchall()
            assert rows_read(found["Plan"]) <= 100


async def test_a_look_for_wake_ups_writes_nothing_where_nothing_is_due(url: str) -> None:
    """It takes no transaction id, so the server has nothing to write down and to wait for."""
    async with Opened(PostgresStore(url)) as store:
        await store.transact(KEY, Needs(), lambda _, now_ms: Plan(None, wake=WakeAt(now_ms + 60_000)))
        with operator(url) as console:
            ids = []
            for _ in range(2):
                assert () == (await store.claim_wakes([KEY.contract], limit=5, lease_ms=1)).due
                ids += console.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text").fetchall()
        assert ids[0] == ids[1]


def deciding(_snapshot: Snapshot, _now_ms: int) -> Plan[None]:
    return Plan(None)


def rows_read(node: dict[str, Any]) -> int:
    """How many rows a part of a plan has read, with all that it is made of."""
    read = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return int(read) + sum(map(rows_read, node.get("Plans", ())))


# ── locks ────────────────────────────────────────────────────────────────────────────────


async def test_sessions_never_wait_on_each_other(url: str) -> None:
    gate = Gate()
    async with Opened(PostgresStore(url)) as store, anyio.create_task_group() as tasks:
        await append(store, "e1")
        tasks.start_soon(hold, store, KEY, gate)
        await gate.reached()
        assert 1 == await append(store, "e1", OTHER)
        assert ["e1"] == await log_of(store)
        gate.open()


async def test_transactions_of_one_session_go_one_after_another(url: str) -> None:
    async with Opened(PostgresStore(url)) as store, Opened(PostgresStore(url)) as twin:
        for number in (0, 3):  # a session that is not there yet, and one that is
            gate, answers = Gate(f"gate{number}"), dict[str, int]()

            async def append_later(store: Store, event_id: str, answers: dict[str, int] = answers) -> None:
                answers[event_id] = await append(store, event_id)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hold, store, KEY, gate)
                await gate.reached()
                tasks.start_soon(append_later, store, f"one{number}")
                tasks.start_soon(append_later, twin, f"two{number}")
                await waiting_for_a_lock(url, 2)
                assert {} == answers
                gate.open()
            log = await log_of(store)
            assert f"gate{number}" == log[number]
            assert {event_id: log.index(event_id) + 1 for event_id in answers} == answers


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
async def test_a_database_with_another_isolation_level_makes_no_difference(url: str, level: str) -> None:
    settings = {"isolation": level.replace(" ", "\\ "), "read_only": "on"}
    options = "".join(f" -cdefault_transaction_{name}={value}" for name, value in settings.items())
    strict = url + quote(options)
    with operator(strict) as console:
        assert [(level,)] == console.execute("SHOW default_transaction_isolation").fetchall()
    async with Opened(PostgresStore(strict)) as store, Opened(PostgresStore(strict)) as twin:
        calls = [lambda one=one, n=n: append(one, f"{n}-{id(one)}") for one in (store, twin) for n in range(20)]
        assert set(range(1, 41)) == set(await together(*calls))


async def test_a_lock_held_too_long_makes_a_session_unavailable_until_it_is_given_back(url: str) -> None:
    gate = Gate()
    async with Opened(PostgresStore(url)) as holder, Opened(PostgresStore(url, timeout="50ms")) as store:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold, holder, KEY, gate)
            await gate.reached()
            text = await failing_with(StoreUnavailable, append(store, "e1"))
            assert text.endswith(
                (": canceling statement due to lock timeout (SQLSTATE 55P03)", ": no answer within 50 ms")
            )
            with pytest.raises(StoreUnavailable):
                store.transact_blocking(KEY, Needs(), appending_as("e1"))
            gate.open()
        assert 2 == await append(holder, "e1")
        assert ["gate", "e1"] == await log_of(store)


async def test_a_session_in_a_transaction_is_claimed_once_it_is_free(url: str) -> None:
    gate = Gate()
    async with Opened(PostgresStore(url)) as store, Opened(PostgresStore(url)) as twin:
        for key in (KEY, OTHER):
            await store.transact(key, Needs(), lambda _snapshot, _now_ms: Plan(None, wake=WakeAt(0)))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold, store, KEY, gate)
            await gate.reached()
            assert (OTHER,) == (await twin.claim_wakes(["shop"], limit=9, lease_ms=99_999)).due
            wakes = await twin.claim_wakes(["shop"], limit=9, lease_ms=99_999)
            assert ((), 10) == (wakes.due, wakes.next_in_ms)
            gate.open()
        assert (KEY,) == (await twin.claim_wakes(["shop"], limit=9, lease_ms=99_999)).due


async def test_a_purge_waits_for_who_uses_the_session_and_removes_nothing_new(url: str) -> None:
    gate = Gate()
    purged: list[int] = []

    async def purge(store: Store) -> None:
        purged.append(await store.purge(9))

    async with Opened(PostgresStore(url)) as store, Opened(PostgresStore(url)) as twin:
        entry = Entry("old", "order", "{}", None, 0, 1)
        await store.transact(KEY, Needs(), lambda _snapshot, _now_ms: Plan(None, entries=(entry,), expires={1: 0}))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold, store, KEY, gate)
            await gate.reached()
            tasks.start_soon(purge, twin)
            await waiting_for_a_lock(url, 1)
            gate.open()
        assert [1] == purged
        assert ["gate"] == [entry.id for entry in await store.read(KEY, 0, 9)]
        assert 3 == await append(store, "e1")


# ── what cannot be stored ────────────────────────────────────────────────────────────────


def same_id_twice(snapshot: Snapshot, _now_ms: int) -> Plan[int]:
    return Plan(0, entries=tuple(Entry("e", "order", "{}", None, 0, snapshot.last_seq + n) for n in (1, 2)))


def no_unicode_text(snapshot: Snapshot, _now_ms: int) -> Plan[int]:
    return Plan(0, entries=(Entry("bad", "order", '"\ud83d"', None, 0, snapshot.last_seq + 1),))


def number_without_end(snapshot: Snapshot, _now_ms: int) -> Plan[int]:
    return Plan(0, entries=(Entry("bad", "order", "{}", None, 2**70, snapshot.last_seq + 1),))


def ending_with_nul(snapshot: Snapshot, now_ms: int) -> Plan[int]:
    plan = appending_as("bad")(snapshot, now_ms)
    return Plan(0, entries=plan.entries, endings={1: Ending(EndingKind.SKIPPED, "a\0b")})


@pytest.mark.parametrize(
    ("breaker", "error"),
    [
        (same_id_twice, StoreBroken),
        (no_unicode_text, UnicodeEncodeError),
        (number_without_end, StoreBroken),
        (ending_with_nul, StoreBroken),
    ],
)
async def test_a_plan_that_cannot_be_written_is_not_written_at_all(
    url: str, breaker: Decide[int], error: type[Exception]
) -> None:
    async with Opened(PostgresStore(url, connections=1)) as store:
        for transact in (store.transact, to_async(store.transact_blocking)):
            await failing_with(error, transact(KEY, Needs(), breaker))
            await failing_with(error, transact(KEY, Needs(), breaker))
        assert 1 == await append(store, "next")
        assert ["next"] == await log_of(store)


async def test_what_a_broken_statement_held_is_not_told(url: str) -> None:
    async with Opened(PostgresStore(url)) as store:
        with operator(url) as console:
            console.execute("DROP TABLE a2_log")
        plan: Plan[None] = Plan(None, entries=(Entry("e", "order", '"what nobody may know"', None, 0, 1),))
        text = await failing_with(StoreBroken, store.transact(KEY, Needs(), lambda _seen, _now_ms: plan))
        assert text.endswith(': relation "a2_log" does not exist (SQLSTATE 42P01)')


@pytest.mark.parametrize(
    "error", [TimeoutError(), OSError(5, "a disk of its own"), psycopg.OperationalError("its own")]
)
async def test_what_a_decision_raises_is_not_taken_for_the_store_s(url: str, error: Exception) -> None:
    def refuse(_snapshot: Snapshot, _now_ms: int) -> Plan[int]:
        raise error

    async with Opened(PostgresStore(url, connections=1)) as store:
        for transact in (store.transact, to_async(store.transact_blocking)):
            with pytest.raises(type(error)) as caught:
                await transact(KEY, Needs(), refuse)
            assert caught.value is error
        assert 1 == await append(store, "next")


def to_async(function: Callable[[SessionKey, Needs, Decide[int]], int]) -> Callable[..., Awaitable[int]]:
    async def call(key: SessionKey, needs: Needs, decide: Decide[int]) -> int:
        return function(key, needs, decide)

    return call


async def test_names_as_long_as_names_may_be_fit_its_indexes(url: str) -> None:
    names = ["".join(chr(0x10000 + (17 * n + 31 * m) % 50_000) for m in range(256)) for n in range(4)]  # 1,024 bytes
    contract, session_id, event_id, lane = names
    entry = Entry(event_id, "order", "{}", None, 0, 1)
    plan: Plan[None] = Plan(None, entries=(entry,), items=(WorkItem(entry, lane, key=lane),), wake=WakeAt(0))
    async with Opened(PostgresStore(url)) as store:
        key = SessionKey(contract, session_id)
        await store.transact(key, Needs(), lambda _seen, _now_ms: plan)
        found = await store.transact(key, Needs(ids=(event_id,)), lambda seen, _now_ms: Plan(dict(seen.entries)))
        assert {event_id: entry} == found
        assert (key,) == (await store.claim_wakes([contract], limit=1, lease_ms=1)).due


# ── schemas ──────────────────────────────────────────────────────────────────────────────


async def test_stores_that_open_a_fresh_database_at_once(url: str) -> None:
    stores = [PostgresStore(url) for _ in range(8)]
    await together(*[store.open for store in stores])
    await together(*[lambda store=store: append(store, f"e-{id(store)}") for store in stores])
    assert {f"e-{id(store)}" for store in stores} == set(await log_of(stores[0]))
    for store in stores:
        await store.close()


async def test_a_schema_of_the_future_breaks_the_store(url: str) -> None:
    async with Opened(PostgresStore(url)) as store:
        await append(store, "e1")
    with operator(url) as console:
        console.execute("UPDATE a2_meta SET value = '99' WHERE key = 'schema'")
    store = PostgresStore(url)
    expected = "the store has schema 99, this version of a2 knows up to 2: upgrade a2"
    assert expected == await failing_with(StoreBroken, store.open())
    assert expected == await failing_with(StoreBroken, append(store, "e2"))
    with pytest.raises(StoreBroken, match=expected):
        store.transact_blocking(KEY, Needs(), appending_as("e2"))
    with operator(url) as console:
        console.execute("UPDATE a2_meta SET value = '2' WHERE key = 'schema'")
    assert 2 == store.transact_blocking(KEY, Needs(), appending_as("e2"))
    await store.close()


async def test_names_are_sorted_by_code_points_whatever_the_database_does(url: str) -> None:
    async with Opened(PostgresStore(url)):
        text = "SELECT count(*) FROM information_schema.columns WHERE table_schema = 'a2_of_one_test'"
        with operator(url) as console:
            names = "('contract', 'session_id', 'id', 'lane', 'key')"
            text += f" AND data_type = 'text' AND table_name <> 'a2_meta' AND column_name IN {names}"
            assert [(7,)] == console.execute(text).fetchall()
            assert [(7,)] == console.execute(f"{text} AND collation_name = 'C'").fetchall()


# ── the URL and the driver ───────────────────────────────────────────────────────────────

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "wrong",
    ["", "postgresql+psycopg://u:s3cr3t@h/d", f"postgresql://u:{SECRET}@[::1/d", f"password={SECRET}' host", "x"],
)
def test_a_url_of_no_database_is_refused_at_once_and_not_repeated(wrong: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        PostgresStore(wrong)
    text = "PostgresStore: expected a URL as postgresql://user:password@host:5432/database, got another text"
    assert text == str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_store_needs_a_connection() -> None:
    with pytest.raises(ConfigurationError, match="expected at least 1 connection, got 0"):
        PostgresStore("postgresql://h/d", connections=0)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://u:{SECRET}@h:1/d", "postgresql://u@h:1/d"),
        (f"postgres://h/d?password={SECRET}&sslmode=require", "postgresql://h/d"),
        (f"host=h password={SECRET} dbname=d", "postgresql://h/d"),
        ("postgresql:///d", "postgresql:///d"),
    ],
)
def test_its_repr_names_the_database_and_no_password(url: str, shown: str) -> None:
    assert f"PostgresStore({shown!r})" == repr(PostgresStore(url))


async def test_no_password_is_told_whatever_fails(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for url in (f"postgresql://u:{SECRET}@127.0.0.1:1/d", f"postgresql://u:{SECRET}@host.invalid/d?sslmode=disable"):
        store = PostgresStore(url, timeout="2s")
        for call in (store.open, store.ping, to_async(store.transact_blocking)):
            arguments = () if call in {store.open, store.ping} else (KEY, Needs(), appending_as("e"))
            with pytest.raises(StoreUnavailable) as caught:
                await call(*arguments)
            told = "".join(traceback.format_exception(caught.value)) + repr(store)
            assert SECRET not in told
            assert "u@" in told
        await store.close()
    assert SECRET not in caplog.text


@pytest.mark.parametrize("was_open", [False, True])
async def test_a_store_that_is_not_open_is_unavailable(url: str, *, was_open: bool) -> None:
    store = PostgresStore(url)
    if was_open:
        await store.open()
    await store.close()
    text = f"{store!r} is not open: await store.open() first, or use it through A2"
    for call in (append(store, "e1"), store.read(KEY, 0, 1), store.purge(1), store.sessions(), store.ping()):
        assert text == await failing_with(StoreUnavailable, call)
    with pytest.raises(StoreUnavailable):
        store.transact_blocking(KEY, Needs(), appending_as("e1"))


async def test_a_ping_asks_the_database(url: str) -> None:
    async with Opened(PostgresStore(url)) as store:
        await store.ping()
        with operator(url) as console:
            console.execute("DROP TABLE a2_sessions")
        assert "does not exist" in await failing_with(StoreBroken, store.ping())


def test_only_who_makes_a_store_needs_psycopg() -> None:
    code = """
import sys
sys.modules["psycopg"] = None
import a2asgi
try:
    a2asgi.PostgresStore("postgresql://h/d")
except a2asgi.ConfigurationError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("PostgresStore needs psycopg: pip install 'a2[postgres]' (")
