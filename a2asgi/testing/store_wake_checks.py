"""Checks of what a store knows across sessions: wake-ups, pages of logs, dead letters and sessions."""

from collections.abc import Sequence
from dataclasses import replace

from a2asgi.ports import SessionKey, Store, Wakes
from a2asgi.testing.store_bench import (
    HOUR_MS,
    KEY,
    OTHER,
    SLACK_MS,
    Bench,
    Opened,
    expect,
    expect_near,
    order,
    plain_timer,
    together,
)
from a2core import DeadLetter, Failure, Plan, WakeAt, WakeBy, WorkItem

SHOP = ("shop",)
KEYS = tuple(SessionKey("shop", f"s-{number:02}") for number in range(20))


async def check_wake_by_only_lowers(bench: Bench) -> None:
    """WakeBy moves the wake-up earlier or leaves it, and a plan without a wake leaves it."""
    now_ms = await bench.now_ms()
    for at_ms, expected_ms in ((now_ms + 50, now_ms + 50), (now_ms + 90, now_ms + 50), (now_ms - 7, now_ms - 7)):
        await bench.wake(WakeBy(at_ms), KEY)
        expect({KEY: expected_ms}, await _wakes_at(bench), f"wake_at_ms after WakeBy({at_ms})")
    await bench.append("main")
    expect({KEY: now_ms - 7}, await _wakes_at(bench), "wake_at_ms after a plan without a wake")
    await bench.wake(WakeBy(now_ms), OTHER)
    expect({KEY: now_ms - 7, OTHER: now_ms}, await _wakes_at(bench), "wake_at_ms of two sessions")


async def check_wake_at_sets_or_clears(bench: Bench) -> None:
    """WakeAt moves the wake-up to its instant, earlier or later, or takes it away."""
    now_ms = await bench.now_ms()
    await bench.append("main")
    expect({KEY: None}, await _wakes_at(bench), "wake_at_ms of a session that was never given one")
    for at_ms in (now_ms + 50, now_ms + 90, now_ms + 10, None, None, now_ms + 70):
        await bench.wake(WakeAt(at_ms), KEY)
        expect({KEY: at_ms}, await _wakes_at(bench), f"wake_at_ms after WakeAt({at_ms})")
    await bench.wake(WakeAt(None), KEY)
    await bench.wake(WakeBy(now_ms + 80), KEY)
    expect({KEY: now_ms + 80}, await _wakes_at(bench), "wake_at_ms after a WakeBy where there was none")
    await bench.wake(WakeAt(None), KEY)
    expect(((), None), _parts(await _take(bench.store)), "what is due where no wake-up is left")


async def check_a_wake_is_due_from_its_instant(bench: Bench) -> None:
    """A wake-up is due from its instant on; until then claim_wakes says in how many milliseconds the next one is."""
    now_ms = await bench.now_ms()
    expect(((), None), _parts(await _take(bench.store)), "what is due in an empty store")
    await bench.wake(WakeAt(now_ms + 2 * HOUR_MS), KEY)
    await bench.wake(WakeAt(now_ms + 3 * HOUR_MS), OTHER)
    wakes = await _take(bench.store)
    expect((), wakes.due, "what is due two hours early")
    expect_near(2 * HOUR_MS, wakes.next_in_ms, "next_in_ms")
    bench.clock.move(2 * HOUR_MS)
    wakes = await _take(bench.store, lease_ms=5 * HOUR_MS)
    expect((KEY,), wakes.due, "what is due two hours later")
    expect_near(HOUR_MS, wakes.next_in_ms, "next_in_ms, for the one that is not due")


async def check_a_claimed_wake_is_put_off(bench: Bench) -> None:
    """A session that was claimed is put off by the lease: not due before, and due again after it."""
    await bench.wake(WakeAt(await bench.now_ms()), KEY)
    for _ in range(3):
        now_ms = await bench.now_ms()
        wakes = await _take(bench.store, lease_ms=2 * HOUR_MS)
        expect((KEY,), wakes.due, "what is due")
        expect_near(2 * HOUR_MS, wakes.next_in_ms, "next_in_ms right after the claim")
        expect_near(now_ms + 2 * HOUR_MS, (await _wakes_at(bench))[KEY], "wake_at_ms right after the claim")
        expect((), (await _take(bench.store)).due, "what is due right after the claim")
        bench.clock.move(HOUR_MS)
        wakes = await _take(bench.store)
        expect((), wakes.due, "what is due within the lease")
        expect_near(HOUR_MS, wakes.next_in_ms, "next_in_ms within the lease")
        bench.clock.move(HOUR_MS)
    await bench.wake(WakeAt(None), KEY)
    expect(((), None), _parts(await _take(bench.store)), "what is due once the session was looked after")


async def check_each_wake_is_claimed_once(bench: Bench) -> None:
    """However many claim at once, each due session goes to one of them."""
    for _ in range(3):
        await bench.wake(WakeAt(await bench.now_ms()), *KEYS)

        async def claim() -> list[SessionKey]:
            mine: list[SessionKey] = []
            while due := (await _take(bench.store, limit=3, lease_ms=2 * HOUR_MS)).due:
                mine += due
            return mine

        claimed = [key for mine in await together(*[claim] * 5) for key in mine]
        expect(list(KEYS), sorted(claimed, key=_order), "the sessions that five claimers got")


async def check_wakes_are_limited(bench: Bench) -> None:
    """No more sessions than the limit are claimed; what is left stays due, and none of it is starved."""
    await bench.wake(WakeAt(await bench.now_ms()), *KEYS)
    wakes = await _take(bench.store, limit=0)
    expect((), wakes.due, "what is claimed with limit 0")
    expect_near(0, wakes.next_in_ms, "next_in_ms with everything due")
    claimed: list[SessionKey] = []
    for expected in (7, 7, 6, 0):
        wakes = await _take(bench.store, limit=7, lease_ms=HOUR_MS)
        expect(expected, len(wakes.due), f"how many are claimed with limit 7 and {20 - len(claimed)} due")
        claimed += wakes.due
        expect_near(0 if len(claimed) < len(KEYS) else HOUR_MS, wakes.next_in_ms, "next_in_ms")
    expect(list(KEYS), sorted(claimed, key=_order), "the sessions that were claimed")


async def check_late_wakes(bench: Bench) -> None:
    """With late_ms, a session is due only once its wake-up is that long past; next_in_ms counts accordingly."""
    now_ms = await bench.now_ms()
    await bench.wake(WakeAt(now_ms), KEY)
    await bench.wake(WakeAt(now_ms - 3 * HOUR_MS), OTHER)
    wakes = await _take(bench.store, lease_ms=9 * HOUR_MS, late_ms=2 * HOUR_MS)
    expect((OTHER,), wakes.due, "what has been due for two hours")
    expect_near(2 * HOUR_MS, wakes.next_in_ms, "next_in_ms with late_ms")
    bench.clock.move(HOUR_MS)
    wakes = await _take(bench.store, late_ms=2 * HOUR_MS)
    expect((), wakes.due, "what has been due for two hours, an hour later")
    expect_near(HOUR_MS, wakes.next_in_ms, "next_in_ms with late_ms, an hour later")
    bench.clock.move(HOUR_MS)
    wakes = await _take(bench.store, lease_ms=HOUR_MS, late_ms=2 * HOUR_MS)
    expect((KEY,), wakes.due, "what has been due for two hours, two hours later")
    expect_near(3 * HOUR_MS, wakes.next_in_ms, "next_in_ms with late_ms after a claim: the lease, and late_ms more")


async def check_wakes_of_contracts(bench: Bench) -> None:
    """Only sessions of the contracts that were asked for are claimed and counted."""
    now_ms = await bench.now_ms()
    shops, banks = KEYS[:3], tuple(SessionKey("bank", f"s-{number}") for number in range(2))
    await bench.wake(WakeAt(now_ms), *shops)
    await bench.wake(WakeAt(now_ms + HOUR_MS), *banks)
    for contracts in ((), ("shops",), ("sho", "SHOP", "%")):
        expect(((), None), _parts(await _take(bench.store, contracts)), f"what is due of {contracts}")
    wakes = await _take(bench.store, ("bank", "none"))
    expect((), wakes.due, "what is due of the contract that is early")
    expect_near(HOUR_MS, wakes.next_in_ms, "next_in_ms of the contract that is early")
    bench.clock.move(HOUR_MS)
    wakes = await _take(bench.store, {"shop", "bank", "none"}, limit=4)
    rest = await _take(bench.store, ["bank", "shop"], limit=4)
    claimed = sorted((*wakes.due, *rest.due), key=_order)
    expect(([*banks, *shops], 4), (claimed, len(wakes.due)), "what two claims of four get of five due ones")


async def check_a_claimed_wake_keeps_its_work(bench: Bench) -> None:
    """To claim a wake-up touches the wake-up alone."""
    now_ms = await bench.now_ms()
    items = await bench.append("a", "b", "a")
    timer = plain_timer("t", now_ms)
    await bench.put(KEY, Plan(None, timers=(timer,), wake=WakeBy(now_ms)))
    before = await bench.look(ids=("e1", "e2", "e3"), timers=("t",), heads=True)
    expect((KEY,), (await _take(bench.store)).due, "what is due")
    expect(before, await bench.look(ids=("e1", "e2", "e3"), timers=("t",), heads=True), "the snapshot after the claim")
    expect({item.seq: item for item in items}, dict(before.items), "the open work")


async def check_pages_of_a_log(bench: Bench) -> None:
    """A log is read in order, from after a seq, up to a limit; a session that never was reads empty."""
    expect([], await bench.store.read(KEY, 0, 10), "the log of a session that never was")
    await bench.append(*["main"] * 12)
    await bench.append("main", key=OTHER)
    pages = ((0, 5, range(1, 6)), (5, 5, range(6, 11)), (10, 5, (11, 12)), (12, 5, ()), (99, 5, ()), (0, 0, ()))
    for after, limit, seqs in pages:
        page = await bench.store.read(KEY, after, limit)
        expect(list(seqs), [entry.seq for entry in page], f"the seqs of read(after_seq={after}, limit={limit})")
    expect(["e1"], [entry.id for entry in await bench.store.read(OTHER, 0, 10)], "the log of the other session")


async def check_pages_of_dead_letters(bench: Bench) -> None:
    """Dead letters are listed by contract, session id and seq, in code point order, all or those of one contract."""
    keys = [SessionKey(contract, id_) for contract in ("Z", "a", "b") for id_ in ("S", "s", "s-1")]
    for key in reversed(keys):
        [first, second, third, _] = await bench.append("main", "other", "third", "other", key=key)
        dead = [replace(item, dead=DeadLetter(Failure("E", str(key)), item.seq)) for item in (first, third)]
        held = replace(second, attempt=1, failures=1)
        await bench.put(key, Plan(None, items=(*dead, held)))
    letters = [(key, item.seq) for key in keys for item in dead]
    for contract in (None, "Z", "a", "none"):
        expected = [letter for letter in letters if contract in {None, letter[0].contract}]
        for limit in (1, 4, 100):
            found: list[tuple[SessionKey, WorkItem]] = []
            after: tuple[SessionKey, int] | None = None
            while page := await bench.store.dead_letters(contract, after=after, limit=limit):
                expect(min(limit, len(expected) - len(found)), len(page), f"the length of a page with {limit=}")
                found += page
                after = page[-1][0], page[-1][1].seq
            expect(expected, [(key, item.seq) for key, item in found], f"the dead letters of {contract=}, {limit=}")
            expect([str(key) for key, _ in expected], _messages(found), "their messages")

    alive = replace(first, dead=None)
    await bench.put(keys[0], Plan(None, items=(alive,)))
    await bench.settle(3, key=keys[0])
    expect(letters[2:], [(key, item.seq) for key, item in await bench.store.dead_letters()], "those that are left")


async def check_pages_of_sessions(bench: Bench) -> None:
    """Sessions are listed by contract and id, in code point order, all or those of one contract, each once."""
    keys = [SessionKey(contract, id_) for contract in ("Z", "a", "ab") for id_ in ("S", "s", "s-1", "é", "🍸")]
    for number, key in reversed(list(enumerate(keys))):
        entries = tuple(order(seq) for seq in range(1, number + 1))
        await bench.put(key, Plan(None, entries=entries, wake=WakeBy(number)))
    rows = [(key, number, number) for number, key in enumerate(keys)]
    for contract in (None, "a", "ab", "none"):
        expected = [row for row in rows if contract in {None, row[0].contract}]
        for limit in (1, 4, 100):
            found: list[tuple[SessionKey, int, int | None]] = []
            after: SessionKey | None = None
            while page := await bench.store.sessions(contract, after=after, limit=limit):
                expect(min(limit, len(expected) - len(found)), len(page), f"the length of a page with {limit=}")
                found += [(info.key, info.last_seq, info.wake_at_ms) for info in page]
                after = page[-1].key
            expect(expected, found, f"the sessions of {contract=} with {limit=}")


async def check_two_stores_share_the_wakes(bench: Bench) -> None:
    """Two stores on the same data never claim the same wake-up, and each sees what the other put off."""
    async with Opened(bench.another()) as twin:
        await bench.wake(WakeAt(await bench.now_ms()), *KEYS)

        async def claim(store: Store) -> list[SessionKey]:
            mine: list[SessionKey] = []
            while due := (await _take(store, limit=2, lease_ms=HOUR_MS)).due:
                mine += due
            return mine

        stores = (bench.store, twin, bench.store, twin)
        claimed = await together(*[lambda store=store: claim(store) for store in stores])
        expect(list(KEYS), sorted((key for mine in claimed for key in mine), key=_order), "what four claimers got")
        for store in stores[:2]:
            expect_near(HOUR_MS, (await _take(store)).next_in_ms, "next_in_ms, as both see it")


async def _take(
    store: Store,
    contracts: Sequence[str] | set[str] = SHOP,
    *,
    limit: int = 100,
    lease_ms: int = SLACK_MS * 5,
    late_ms: int = 0,
) -> Wakes:
    return await store.claim_wakes(contracts, limit=limit, lease_ms=lease_ms, late_ms=late_ms)


async def _wakes_at(bench: Bench) -> dict[SessionKey, int | None]:
    return {info.key: info.wake_at_ms for info in await bench.store.sessions()}


def _parts(wakes: Wakes) -> tuple[tuple[SessionKey, ...], int | None]:
    return wakes.due, wakes.next_in_ms


def _order(key: SessionKey) -> tuple[str, str]:
    return key.contract, key.session_id


def _messages(letters: Sequence[tuple[SessionKey, WorkItem]]) -> list[str]:
    return [item.dead.failure.message for _, item in letters if item.dead is not None]
