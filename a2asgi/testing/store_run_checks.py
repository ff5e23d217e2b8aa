"""Checks of what jobs and crons ask of a store: keys, items that change their lane, expiry, a clock that tests move."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from a2asgi.ports import SessionKey
from a2asgi.testing.store_bench import (
    HOUR_MS,
    KEY,
    OTHER,
    Bench,
    Opened,
    expect,
    expect_near,
    order,
    plain_timer,
    together,
)
from a2asgi.testing.store_checks import NAMES
from a2core import (
    Claim,
    DeadLetter,
    Draft,
    Ending,
    EndingKind,
    Failure,
    Needs,
    Plan,
    Snapshot,
    Timer,
    TimerRecord,
    Tombstone,
    WakeAt,
    WorkItem,
    decide_enqueue,
)

DEAD = DeadLetter(Failure("E", "m"), 0)
HALF_MS = HOUR_MS // 2


async def check_open_work_is_found_by_its_key(bench: Bench) -> None:
    """Open work is found by its key, to the character, however far it has come, and until it is dead or settled."""
    items = tuple(WorkItem(order(seq), "main", key=name) for seq, name in enumerate(NAMES, 1))
    plain = WorkItem(order(len(NAMES) + 1), "main")
    await bench.append("main", key=OTHER)
    await bench.put(KEY, Plan(None, entries=tuple(item.entry for item in (*items, plain)), items=(*items, plain)))
    for item in items:
        key = str(item.key)
        expect({key: item.entry.id}, await _keyed(bench, key), f"what has the key {key!r}")
    expect({name: f"e{seq}" for seq, name in enumerate(NAMES, 1)}, await _keyed(bench, *NAMES), "what has one of many")
    expect({}, await _keyed(bench, "none", "e1", "main", "b"), "what has a key that nothing has")
    expect({}, dict((await bench.look(OTHER, keys=NAMES)).keyed), "what has a key in another session")

    first, second, third, *_ = items
    keys = NAMES[:3]
    expected = {name: f"e{seq}" for seq, name in enumerate(keys, 1)}
    await bench.put(KEY, Plan(None, items=(replace(first, attempt=2, failures=1), replace(second, lane="aside"))))
    expect(expected, await _keyed(bench, *keys), "what has three keys, one tried and one in another lane")
    await bench.put(KEY, Plan(None, items=(replace(first, dead=DEAD),)))
    await bench.settle(2)
    expect({keys[2]: "e3"}, await _keyed(bench, *keys), "what has three keys, one's work dead and one's settled")
    await bench.put(KEY, Plan(None, items=(first, replace(third, key="changed"))))
    expect({keys[0]: "e1"}, await _keyed(bench, *keys), "what has three keys, the dead one alive, another changed")


async def check_waiting_timers_are_found_by_their_key(bench: Bench) -> None:
    """A timer is found by the key of what it carries while it waits, due or not, and never once it is gone."""
    now_ms = await bench.now_ms()
    names = ("due", "later", "cancelled", "delivered", "changed")
    timers = tuple(
        Timer(name, now_ms + place * HOUR_MS, None, (Draft(f"{name}-1", "order", "{}", "main", f"key-{name}"),))
        for place, name in enumerate(names)
    )
    await bench.put(KEY, Plan(None, timers=(*timers, plain_timer("plain", now_ms))))
    await bench.append("main", key=OTHER)
    keys = [f"key-{name}" for name in names]
    expect(dict(zip(keys, names, strict=True)), await _keyed(bench, *keys, "plain"), "the timers that have a key")
    expect({}, dict((await bench.look(OTHER, keys=keys)).keyed), "the timers that have one in another session")
    changed = Timer("changed", now_ms, None, (Draft("x", "order", "{}", "main", "key-new"),))
    await bench.put(KEY, Plan(None, timers=(Tombstone("cancelled"), changed), delivered=("delivered",)))
    expected = {"key-due": "due", "key-later": "later", "key-new": "changed"}
    expect(expected, await _keyed(bench, *keys, "key-new"), "the timers that are left of them")


async def check_one_key_has_one_run(bench: Bench) -> None:
    """However many enqueue a run of one key at once, one of them is new, and all get its id."""

    def enqueue(number: int) -> Callable[[], Awaitable[tuple[str, bool]]]:
        draft = Draft(f"run-{number}", "order", "{}", "main", "k")

        async def one() -> tuple[str, bool]:
            answer = await bench.store.transact(
                KEY,
                Needs(keys=("k",)),
                lambda seen, now_ms: decide_enqueue(seen, now_ms, draft=draft, due_at_ms=now_ms + number % 2 * HOUR_MS),
            )
            return answer.id, answer.new

        return one

    answers = await together(*[enqueue(number) for number in range(20)])
    expect(1, len({id_ for id_, _ in answers}), "how many runs the callers of one key were told of")
    expect(1, sum(new for _, new in answers), "how many of them were told that theirs is new")


async def check_an_item_changes_its_lane(bench: Bench) -> None:
    """Where an item leaves its lane the next one is head at once, and in its new lane the order is that of the seqs."""
    work = {item.seq: item for item in await bench.append("a", "b", "a", "b", "a", "c")}
    steps: tuple[tuple[Mapping[int, str], tuple[int, ...], tuple[str, ...], dict[int, str]], ...] = (
        ({1: "new"}, (), (), {1: "new", 2: "b", 3: "a", 6: "c"}),
        ({5: "b"}, (), (), {1: "new", 2: "b", 3: "a", 6: "c"}),
        ({3: "new"}, (), (), {1: "new", 2: "b", 6: "c"}),
        ({2: "c"}, (), (), {1: "new", 2: "c", 4: "b"}),
        ({1: "b"}, (), (), {1: "b", 2: "c", 3: "new"}),
        ({}, (2,), (), {1: "b", 3: "new", 6: "c"}),
        ({3: "b", 6: "new"}, (), (), {1: "b", 6: "new"}),
        ({6: "b", 4: "new"}, (1,), (), {3: "b", 4: "new"}),
        ({3: "d"}, (), ("b", "d"), {3: "d", 4: "new", 5: "b"}),
        ({4: "e"}, (5,), ("new",), {3: "d", 4: "e", 6: "b", 9: "new"}),
        ({}, (3, 6), (), {4: "e", 7: "b", 8: "d", 9: "new"}),
    )
    for moves, settled, lanes, heads in steps:

        def decide(
            snapshot: Snapshot,
            now_ms: int,
            moves: Mapping[int, str] = moves,
            settled: tuple[int, ...] = settled,
            lanes: tuple[str, ...] = lanes,
        ) -> Plan[None]:
            fresh = [WorkItem(order(seq, now_ms), lane) for seq, lane in enumerate(lanes, snapshot.last_seq + 1)]
            moved = [replace(work[seq], lane=lane) for seq, lane in moves.items()]
            work.update({item.seq: item for item in (*moved, *fresh)})
            entries = tuple(item.entry for item in fresh)
            return Plan(None, entries=entries, items=(*moved, *fresh), settled=settled)

        await bench.store.transact(KEY, Needs(seqs=(*settled, *moves)), decide)
        found = {item.seq: item.lane for item in sorted((await bench.look(heads=True)).heads, key=lambda one: one.seq)}
        what = f"the heads and their lanes once {moves} moved, {settled} settled and {lanes} were appended"
        expect(heads, found, what)


async def check_who_is_behind(bench: Bench) -> None:
    """Whoever ends an item is told the next open one of its lane, whatever its state, and none of another lane."""
    items = await bench.append("a", "b", "a", "b", "a")
    await bench.append("a", "a", key=OTHER)
    for seq, behind in ((1, items[2]), (2, items[3]), (3, items[4]), (4, None), (5, None), (9, None)):
        expect(behind, (await bench.look(behind=seq)).behind, f"who is behind {seq}")
    claimed = replace(items[2], attempt=3, claim=Claim("h", 1))
    await bench.put(KEY, Plan(None, items=(claimed,)))
    expect(claimed, (await bench.look(behind=1)).behind, "who is behind 1, claimed")
    await bench.settle(3)
    expect(items[4], (await bench.look(behind=1)).behind, "who is behind 1, once 3 is settled")
    expect(None, (await bench.look()).behind, "who is behind nobody")


async def check_what_expired_is_purged(bench: Bench) -> None:
    """A purge removes events whose time has come, the oldest first and no more than it is told, and says how many."""
    now_ms = await bench.now_ms()
    for key in (KEY, OTHER):
        await bench.append(*["main"] * 4, key=key)
        await bench.settle(1, 2, 3, 4, key=key)
    await _expire(bench, KEY, {1: now_ms + 4 * HOUR_MS, 2: now_ms + HOUR_MS, 3: now_ms + 3 * HOUR_MS})
    await _expire(bench, OTHER, {1: now_ms + 2 * HOUR_MS, 2: now_ms + 9 * HOUR_MS, 4: now_ms + 5 * HOUR_MS})
    expect(0, await bench.store.purge(100), "how many were purged an hour early")
    bench.clock.move(HOUR_MS + HALF_MS)
    steps: tuple[tuple[int, int, int, list[int], list[int]], ...] = (
        (0, 0, 0, [1, 2, 3, 4], [1, 2, 3, 4]),
        (0, 100, 1, [1, 3, 4], [1, 2, 3, 4]),
        (0, 100, 0, [1, 3, 4], [1, 2, 3, 4]),
        (4 * HOUR_MS, 1, 1, [1, 3, 4], [2, 3, 4]),
        (0, 1, 1, [1, 4], [2, 3, 4]),
        (0, 1, 1, [4], [2, 3, 4]),
        (0, 100, 1, [4], [2, 3]),
        (99 * HOUR_MS, 100, 1, [4], [3]),
        (0, 100, 0, [4], [3]),
    )
    for duration_ms, limit, purged, here, there in steps:
        bench.clock.move(duration_ms)
        expect(purged, await bench.store.purge(limit), f"how many were purged with {limit=}")
        for key, left in ((KEY, here), (OTHER, there)):
            expect(left, await _seqs(bench, key), f"the seqs left in {key}, once {limit} were purged at most")


async def check_the_last_expiry_counts(bench: Bench) -> None:
    """Expiry can come with the event itself, with its ending, and again; only the last time that was given counts."""
    now_ms = await bench.now_ms()
    ending = Ending(EndingKind.CANCELLED, "moot")
    entries = (order(1), order(2), order(3))
    expires = {1: now_ms + HOUR_MS, 2: now_ms + HOUR_MS, 3: now_ms + 9 * HOUR_MS}
    await bench.put(KEY, Plan(None, entries=entries, endings={1: ending}, expires=expires))
    await _expire(bench, KEY, {2: now_ms + 9 * HOUR_MS, 3: now_ms + HOUR_MS})
    expect([replace(entries[0], ending=ending), *entries[1:]], await bench.store.read(KEY, 0, 9), "the log")
    bench.clock.move(HOUR_MS + HALF_MS)
    expect(2, await bench.store.purge(100), "how many were purged")
    expect([2], await _seqs(bench, KEY), "the seqs left")


async def check_a_purged_log_goes_on(bench: Bench) -> None:
    """Where events were purged the seqs go on counting, the log is read over the gaps, and their ids are free again."""
    now_ms = await bench.now_ms()
    await bench.append(*["main"] * 9)
    gone = (1, 2, 5, 6, 9)
    await bench.settle(*gone)
    await _expire(bench, KEY, dict.fromkeys(gone, now_ms))
    expect(len(gone), await bench.store.purge(100), "how many were purged")
    pages: tuple[tuple[int, int, list[int]], ...] = (
        (0, 3, [3, 4, 7]),
        (3, 2, [4, 7]),
        (4, 9, [7, 8]),
        (5, 1, [7]),
        (8, 9, []),
        (9, 9, []),
    )
    for after, limit, seqs in pages:
        page = [entry.seq for entry in await bench.store.read(KEY, after, limit)]
        expect(seqs, page, f"the seqs of read(after_seq={after}, limit={limit}) over the gaps")
    found = await bench.look(ids=("e1", "e3", "e9"), seqs=range(1, 10), heads=True)
    expect((9, {"e3"}), (found.last_seq, set(found.entries)), "last_seq and the entries that are found by id")
    expect(({3, 4, 7, 8}, [3]), (set(found.items), [item.seq for item in found.heads]), "the open work and its head")

    again = WorkItem(order(10, now_ms, event_id="e1", payload="[]"), "main")
    await bench.put(KEY, Plan(None, entries=(again.entry,), items=(again,)))
    expect({"e1": again.entry}, dict((await bench.look(ids=("e1",))).entries), "the entry with the id of a purged one")
    expect([3, 4, 7, 8, 10], await _seqs(bench, KEY), "the seqs after another append")


async def check_each_event_is_purged_once(bench: Bench) -> None:
    """However many purge at once, beside who appends, each event is counted once, and nothing else is lost."""
    now_ms = await bench.now_ms()
    keys = [SessionKey("shop", f"s-{number}") for number in range(6)]
    for key in keys:
        await bench.append(*["main"] * 5, key=key)
        await bench.settle(1, 2, 3, 4, 5, key=key)
        await _expire(bench, key, dict.fromkeys(range(1, 6), now_ms))

    async def purge() -> int:
        purged = 0
        while count := await bench.store.purge(4):
            purged += count
        return purged

    async def append() -> int:
        for _ in range(5):
            await bench.append("main", key=OTHER)
        return 0

    expect(30, sum(await together(purge, append, purge, purge)), "how many were purged by three at once")
    expect(5, len(await bench.store.read(OTHER, 0, 99)), "how many were appended beside them")


async def check_a_session_goes_with_its_last_event(bench: Bench) -> None:
    """A session is removed with the last that it holds, wake-up included; one that holds anything more stays."""
    now_ms = await bench.now_ms()
    names = ("empty", "timer", "tombstone", "event", "work")
    keys = {name: SessionKey("shop", name) for name in names}
    timers: dict[str, tuple[TimerRecord, ...]] = {
        "timer": (plain_timer("t", now_ms + HOUR_MS),),
        "tombstone": (Tombstone("t"),),
    }
    for name, key in keys.items():
        await bench.append("main", key=key)
        over = Plan(None, settled=(1,), expires={1: now_ms}, timers=timers.get(name, ()), wake=WakeAt(now_ms))
        await bench.put(key, over)
    await bench.put(keys["event"], Plan(None, entries=(order(2),)))
    await bench.append("main", key=keys["work"])
    expect(len(names), await bench.store.purge(100), "how many were purged")
    infos = {info.key.session_id: info.last_seq for info in await bench.store.sessions()}
    expect({"event": 2, "timer": 1, "tombstone": 1, "work": 2}, infos, "the sessions that are left, by their last seq")
    wakes = await bench.store.claim_wakes(("shop",), limit=99, lease_ms=HOUR_MS)
    expect(set(names[1:]), {key.session_id for key in wakes.due}, "the sessions that are due")

    for name, last_seq in (("empty", 0), ("timer", 1), ("tombstone", 1), ("event", 2), ("work", 2)):
        expect(last_seq, (await bench.look(keys[name])).last_seq, f"last_seq of the session {name!r}")
        [item] = await bench.append("main", key=keys[name])
        expect(last_seq + 1, item.seq, f"the seq of the next event of the session {name!r}")
    found = await bench.look(keys["timer"], timers=("t",))
    expect({"t": plain_timer("t", now_ms + HOUR_MS)}, dict(found.timers), "the timer of a session that stayed")


async def check_a_tests_clock_moves_the_stores(bench: Bench) -> None:
    """`offset_ms` moves the clock by which a store tells the time, and judges timers, wake-ups and expiry."""
    now_ms = await bench.now_ms()
    expect(0, bench.store.offset_ms, "offset_ms of a store that no test has moved")
    await bench.append("main")
    timer = plain_timer("t", now_ms + HOUR_MS)
    wake = WakeAt(now_ms + HOUR_MS)
    await bench.put(KEY, Plan(None, settled=(1,), expires={1: now_ms + HOUR_MS}, timers=(timer,), wake=wake))
    for offset_ms in (HALF_MS, 2 * HOUR_MS, HALF_MS, 0, 2 * HOUR_MS):
        bench.store.offset_ms = offset_ms
        expect_near(now_ms + offset_ms, await bench.now_ms(), f"the time with {offset_ms=}")
        blocking_ms = bench.store.transact_blocking(KEY, Needs(), lambda _snapshot, now_ms: Plan(now_ms))
        expect_near(now_ms + offset_ms, blocking_ms, f"the time in transact_blocking with {offset_ms=}")
        due = () if offset_ms < HOUR_MS else (timer,)
        expect(due, (await bench.look(heads=True)).due_timers, f"the due timers with {offset_ms=}")
    bench.store.offset_ms = 0
    expect(0, await bench.store.purge(9), "how many were purged with offset_ms 0")
    wakes = await bench.store.claim_wakes((KEY.contract,), limit=9, lease_ms=1)
    expect((), wakes.due, "what is due with offset_ms 0")
    expect_near(HOUR_MS, wakes.next_in_ms, "next_in_ms with offset_ms 0")
    bench.store.offset_ms = 2 * HOUR_MS
    expect(1, await bench.store.purge(9), "how many were purged two hours later")
    wakes = await bench.store.claim_wakes((KEY.contract,), limit=9, lease_ms=HOUR_MS)
    expect((KEY,), wakes.due, "what is due two hours later")
    expect_near(HOUR_MS, wakes.next_in_ms, "next_in_ms right after the claim")
    [info] = await bench.store.sessions()
    expect_near(now_ms + 3 * HOUR_MS, info.wake_at_ms, "wake_at_ms right after the claim")


async def check_runs_outlive_their_store(bench: Bench) -> None:
    """Keys, progress, rules, lanes and expiry are found by another store on the same data, which goes on with them."""
    now_ms = await bench.now_ms()
    [first, second] = await bench.append("a", "a")
    aside = replace(first, lane="aside", key="k", progress='{"done":1}')
    timer = Timer("t", now_ms, None, (Draft("t-1", "order", "{}", "main", "l"),), "a rule")
    await bench.put(KEY, Plan(None, items=(aside,), timers=(timer,)))
    await bench.append("main", key=OTHER)
    await bench.put(OTHER, Plan(None, settled=(1,), expires={1: now_ms}))
    await bench.store.close()
    async with Opened(bench.another()) as heir:
        found = await Bench(bench.clock, lambda: heir).look(keys=("k", "l"), timers=("t",), heads=True)
        expect({"k": "e1", "l": "t"}, dict(found.keyed), "what has a key")
        expect({1: aside, 2: second}, {item.seq: item for item in found.heads}, "the heads")
        expect({"t": timer}, dict(found.timers), "the timers")
        expect(1, await heir.purge(9), "how many were purged")
        expect([KEY], [info.key for info in await heir.sessions()], "the sessions that are left")


async def _keyed(bench: Bench, *keys: str) -> dict[str, str]:
    return dict((await bench.look(keys=keys)).keyed)


async def _expire(bench: Bench, key: SessionKey, expires: Mapping[int, int]) -> None:
    await bench.put(key, Plan(None, expires=expires))


async def _seqs(bench: Bench, key: SessionKey) -> list[int]:
    return [entry.seq for entry in await bench.store.read(key, 0, 99)]
