"""Checks of a store in use: many tasks, threads, event loops and stores at once, cancelled waits, open and close."""

from collections.abc import Awaitable, Callable

import anyio
from anyio import to_thread
from anyio.lowlevel import checkpoint

from a2asgi.ports import SessionKey, Store
from a2asgi.testing.store_bench import KEY, OTHER, Bench, Opened, appending, appending_as, expect, together
from a2asgi.threads import Loop
from a2core import Needs, Plan, Snapshot, Timer, WakeBy

TASKS = 20
EACH = 5


async def check_many_tasks_append(bench: Bench) -> None:
    """Appends of many tasks to one session get dense, unique seqs, and each task gets the answer to its own."""
    answers = await together(*[_appender(bench.store, f"task{number}") for number in range(TASKS)])
    await _expect_log(bench, *answers)


async def check_many_sessions_at_once(bench: Bench) -> None:
    """Transactions of many sessions at once do not touch each other."""
    keys = [SessionKey(f"contract-{number % 3}", f"s-{number}") for number in range(TASKS)]

    async def append(key: SessionKey) -> None:
        for seq in range(1, EACH + 1):
            [item] = await bench.append("main", key=key)
            expect(seq, item.seq, f"the seq that {key} was given")

    await together(*[lambda key=key: append(key) for key in keys])
    for key in keys:
        expect([f"e{seq}" for seq in range(1, EACH + 1)], await bench.log_ids(key), f"the log of {key}")


async def check_nobody_sees_part_of_a_plan(bench: Bench) -> None:
    """While plans are written, whoever reads sees each of them whole or not at all."""
    plans = 30
    writing = True

    async def write() -> None:
        nonlocal writing

        def decide(snapshot: Snapshot, now_ms: int) -> Plan[None]:
            pair = appending("a", "b")(snapshot, now_ms)
            timer = Timer(f"t{snapshot.last_seq}", now_ms, 0, ())
            return Plan(None, entries=pair.entries, items=pair.items, timers=(timer,), wake=WakeBy(now_ms))

        for _ in range(plans):
            await bench.store.transact(KEY, Needs(), decide)
        writing = False

    async def look() -> None:
        seqs, timers = range(1, 2 * plans + 1), [f"t{seq}" for seq in range(0, 2 * plans, 2)]
        while writing:
            found = await bench.look(seqs=seqs, timers=timers)
            expect(found.last_seq, len(found.items), "how much open work there is, beside last_seq")
            expect(found.last_seq, 2 * len(found.timers), "twice how many timers there are, beside last_seq")
            expect(0, len(await bench.store.read(KEY, 0, 2 * plans)) % 2, "how many events of a pair are in the log")
            await checkpoint()

    await together(write, look, look)


async def check_threads_beside_tasks(bench: Bench) -> None:
    """transact_blocking on threads and transact on tasks share a session as equals."""

    def append_blocking(name: str) -> dict[str, int]:
        ids = [f"{name}-{number}" for number in range(EACH)]
        return {id_: bench.store.transact_blocking(KEY, Needs(ids=(id_,)), appending_as(id_)) for id_ in ids}

    async def on_thread(name: str) -> dict[str, int]:
        return await to_thread.run_sync(append_blocking, name)

    answers = await together(
        *[lambda name=f"thread{number}": on_thread(name) for number in range(4)],
        *[_appender(bench.store, f"task{number}") for number in range(4)],
    )
    await _expect_log(bench, *answers)


async def check_another_event_loop(bench: Bench) -> None:
    """A store that was opened on one event loop serves another one, on another thread, at the same time."""
    elsewhere = _appender(bench.store, "there")

    async def on_thread() -> dict[str, int]:
        return await to_thread.run_sync(lambda: anyio.run(elsewhere, backend="asyncio"))

    await _expect_log(bench, *await together(on_thread, _appender(bench.store, "here")))


async def check_a_cancelled_transaction_is_whole_or_absent(bench: Bench) -> None:
    """Who stops waiting leaves the store usable: a plan is written whole or not at all, and no answer goes astray."""
    loop = Loop()
    answers: list[dict[str, int]] = []

    def cancelled(name: str, *, early: bool) -> Callable[[], Awaitable[dict[str, int]]]:
        async def append() -> dict[str, int]:
            with anyio.CancelScope() as scope:

                def decide(snapshot: Snapshot, now_ms: int) -> Plan[int]:
                    loop.call_soon(scope.cancel)
                    return appending_as(name)(snapshot, now_ms)

                if early:
                    scope.cancel()
                await bench.store.transact(KEY, Needs(), decide)
            return {}

        return append

    for turn in range(10):
        answers += await together(
            cancelled(f"early{turn}", early=True),
            cancelled(f"late{turn}", early=False),
            _appender(bench.store, f"kept{turn}"),
        )
    log = await bench.log_ids()
    expect(len(set(log)), len(log), "how many ids the log has, beside how many different ones")
    found = await bench.look(seqs=range(1, len(log) + 1))
    expect(len(log), len(found.items), "how many of the log's events have their open work")
    kept = {id_: seq for answer in answers for id_, seq in answer.items()}
    expect(kept, {id_: seq for seq, id_ in enumerate(log, 1) if id_.startswith("kept")}, "what nobody cancelled")


async def check_a_store_is_opened_again(bench: Bench) -> None:
    """To open an open store does nothing, and a closed one can be opened again."""
    await bench.append("main")
    await bench.store.open()
    await bench.store.ping()
    expect(["e1"], await bench.log_ids(), "the log after a second open")
    await bench.store.close()
    await bench.store.close()
    await bench.store.open()
    await bench.store.ping()
    await bench.append("main", key=OTHER)
    expect(["e1"], await bench.log_ids(OTHER), "the log of a session made after the store was opened again")


async def check_closing_keeps_what_was_answered(bench: Bench) -> None:
    """Whatever was answered before the store was closed is there when it is opened again."""
    answers = await together(*[_appender(bench.store, f"task{number}") for number in range(TASKS)])
    await bench.store.close()
    await bench.store.open()
    await _expect_log(bench, *answers)


async def check_data_outlives_its_store(bench: Bench) -> None:
    """What one store wrote and closed, another on the same data finds: log, work, timers, wake-up."""
    items = await bench.append("a", "b", "a")
    timer = Timer("t", await bench.now_ms(), None, ())
    await bench.put(KEY, Plan(None, settled=(1,), timers=(timer,), wake=WakeBy(5)))
    looked = await bench.look(ids=("e1", "e2", "e3"), timers=("t",), heads=True)
    sessions = await bench.store.sessions()
    await bench.store.close()
    async with Opened(bench.another()) as heir:
        found = Bench(bench.clock, lambda: heir)
        expect(looked, await found.look(ids=("e1", "e2", "e3"), timers=("t",), heads=True), "the snapshot")
        expect([item.entry for item in items], await heir.read(KEY, 0, 9), "the log")
        expect(sessions, await heir.sessions(), "the sessions")
        await found.append("a")
        expect(["e1", "e2", "e3", "e4"], await found.log_ids(), "the log after one more append")


async def check_two_stores_share_the_data(bench: Bench) -> None:
    """Two stores on the same data see each other's writes at once, and share a session as equals."""
    async with Opened(bench.another()) as twin:
        other = Bench(bench.clock, lambda: twin)
        for one, two in ((bench, other), (other, bench)) * 3:
            [item] = await one.append("main")
            expect(item.entry, (await two.store.read(KEY, item.seq - 1, 1))[0], "what the other reads")
            expect({item.seq: item}, dict((await two.look(seqs=(item.seq,))).items), "what the other looks up")
        stores = (bench.store, twin) * 4
        answers = await together(*[_appender(store, f"task{number}") for number, store in enumerate(stores)])
    appended = {id_: seq for answer in answers for id_, seq in answer.items()}
    log = await bench.log_ids()
    expect(appended, {id_: seq for seq, id_ in enumerate(log, 1) if id_ in appended}, "the seqs that both gave")
    expect(6 + len(appended), len(log), "the length of the log")


def _appender(store: Store, name: str) -> Callable[[], Awaitable[dict[str, int]]]:
    """Append a few events, one after another, and tell which seqs they were given."""

    async def append() -> dict[str, int]:
        ids = [f"{name}-{number}" for number in range(EACH)]
        return {id_: await store.transact(KEY, Needs(ids=(id_,)), appending_as(id_)) for id_ in ids}

    return append


async def _expect_log(bench: Bench, *answers: dict[str, int]) -> None:
    expected = {id_: seq for answer in answers for id_, seq in answer.items()}
    log = await bench.log_ids()
    expect(expected, {id_: seq for seq, id_ in enumerate(log, 1)}, "the seqs in the log")
    expect(len(expected), len(log), "the length of the log")
    expect(list(range(1, len(log) + 1)), await bench.head_seqs(), "the heads, each of a lane of its own")
