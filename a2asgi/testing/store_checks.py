"""Checks of what a store keeps of a session: its log, its open work, its timers."""

from dataclasses import replace

from a2asgi.ports import SessionKey
from a2asgi.testing.store_bench import HOUR_MS, KEY, OTHER, SLACK_MS, Bench, expect, expect_near, order, plain_timer
from a2core import (
    Claim,
    DeadLetter,
    Draft,
    Ending,
    EndingKind,
    Entry,
    Failure,
    Needs,
    Plan,
    Snapshot,
    Timer,
    Tombstone,
    WakeAt,
    WorkItem,
)

MAX_DUE_TIMERS = 1_000
"""A snapshot with more due timers than this is not bounded."""

FAR_MS = 253_402_300_799_999
"""The end of the year 9999, the latest instant there is."""

PAYLOADS = (
    "null",
    "0",
    "-0.0",
    "1.0",
    "1e400",
    "[]",
    '""',
    '{"b":1,"a":2}',
    '{"B":1,"b":2," b":3}',
    '{"a": 1,  "a": 2}',
    '"a\\u0000b"',
    '"\\ud83d"',
    '"\\ud83c\\udf78"',
    '"🍸"',
    '"é"',
    '"e\u0301"',
    '"\u2028\ufeff\x7f"',
    '"\'; -- % _ ? :a $1 {} \\\\ \\""',
    "9" * 4_200,
    "[" * 97 + "]" * 97,
    '"' + "x" * 300_000 + '"',
)

NAMES = (
    "a",
    "A",
    "a ",
    " a",
    "é",
    "e\u0301",
    "🍸",
    "\n",
    "%",
    "_",
    "'",
    '"',
    "\\",
    "?",
    "$1",
    ":a",
    "{a}",
    "null",
    "1",
    "1.0",
    "01",
    "x" * 1_024,
)


async def check_seqs_count_from_1(bench: Bench) -> None:
    """Seqs count from 1, by one, in each session for itself."""
    expect(Snapshot(), await bench.look(), "the snapshot of a session that never was")
    for count in (1, 2, 3):
        await bench.append("main")
        expect(count, (await bench.look()).last_seq, "last_seq")
    await bench.append("main", "main", key=OTHER)
    expect(["e1", "e2", "e3"], await bench.log_ids(KEY), "the log of one session")
    expect(["e1", "e2"], await bench.log_ids(OTHER), "the log of the other")


async def check_a_plan_is_written_whole(bench: Bench) -> None:
    """Every part of a plan is written, and the answer is given back."""
    [first, second] = await bench.append("a", "a")
    now_ms = await bench.now_ms()
    await bench.put(KEY, Plan(None, timers=(plain_timer("gone", now_ms), plain_timer("stays", now_ms))))
    ending = Ending(EndingKind.CANCELLED, "not needed")
    entries = (order(3, 7), order(4, 8))
    plan = Plan(
        "answered",
        entries=entries,
        items=(replace(second, attempt=9), WorkItem(entries[0], "a"), WorkItem(entries[1], "b")),
        settled=(1,),
        endings={1: ending},
        timers=(Tombstone("cancelled"), plain_timer("next", now_ms + HOUR_MS)),
        delivered=("gone",),
        wake=WakeAt(now_ms + 5),
    )
    expect("answered", await bench.put(KEY, plan), "the answer")

    expect([replace(first.entry, ending=ending), second.entry, *entries], await bench.store.read(KEY, 0, 9), "the log")
    found = await bench.look(seqs=(1, 2, 3, 4), timers=("gone", "stays", "cancelled", "next"))
    expect({item.seq: item for item in plan.items}, dict(found.items), "the open work")
    timers = {"stays": plain_timer("stays", now_ms)} | {timer.id: timer for timer in plan.timers}
    expect(timers, dict(found.timers), "the timers")
    [info] = await bench.store.sessions()
    expect((KEY, 4, now_ms + 5), (info.key, info.last_seq, info.wake_at_ms), "the session")


async def check_a_decision_that_raises_writes_nothing(bench: Bench) -> None:
    """What a decision raises is raised as it is, and nothing is written."""
    raised = LookupError("no such thing")

    def decide(_snapshot: Snapshot, _now_ms: int) -> Plan[None]:
        raise raised

    for blocking in (False, True):
        caught: BaseException | None = None
        try:
            if blocking:
                bench.store.transact_blocking(KEY, Needs(heads=True), decide)
            else:
                await bench.store.transact(KEY, Needs(heads=True), decide)
        except LookupError as error:
            caught = error
        expect(True, caught is raised, f"whether the very error came back, with {blocking=}")  # noqa: FBT003 - a value
    expect([], await bench.store.sessions(), "the sessions")
    await bench.append("main")
    expect(["e1"], await bench.log_ids(), "the log")


async def check_a_plan_without_rows_leaves_no_trace(bench: Bench) -> None:
    """A decision that only answers makes no session."""
    expect("only said", await bench.put(KEY, Plan("only said")), "the answer")
    expect([], await bench.store.sessions(), "the sessions")


async def check_lookups(bench: Bench) -> None:
    """What a decision needs is found by id and by seq, open work included, and what is not there is left out."""
    items = await bench.append("main", "main", "other")
    await bench.settle(1)
    found = await bench.look(ids=("e1", "e3", "e9"))
    expect({"e1": items[0].entry, "e3": items[2].entry}, dict(found.entries), "the entries looked up by id")
    expect({3: items[2]}, dict(found.items), "the open work of events looked up by id")
    expect({2: items[1], 3: items[2]}, dict((await bench.look(seqs=(1, 2, 3, 9))).items), "open work looked up by seq")
    found = await bench.look(OTHER, ids=("e1",), seqs=(1,), timers=("t",), heads=True)
    expect(Snapshot(), found, "what is found in another session")

    await bench.append(*["many"] * 1_200)
    ids = [f"e{seq}" for seq in range(1, 3_000)]
    found = await bench.look(ids=ids, seqs=range(1, 3_000))
    expect(set(ids[:1_203]), set(found.entries), "the ids found by a look-up of thousands")
    expect(set(range(2, 1_204)), set(found.items), "the open work found by a look-up of thousands")


async def check_names_are_exact(bench: Bench) -> None:
    """Ids, types, lanes, contracts and session ids are kept and compared character by character."""
    entries = tuple(Entry(name, name, "{}", name, 0, seq) for seq, name in enumerate(NAMES, 1))
    items = tuple(WorkItem(entry, entry.id, claim=Claim(entry.id, 1)) for entry in entries)
    timers = tuple(Timer(name, 5, None, (Draft(name, name, "{}", name),)) for name in NAMES)
    await bench.put(KEY, Plan(None, entries=entries, items=items, timers=timers))
    for entry, item, timer in zip(entries, items, timers, strict=True):
        found = await bench.look(ids=(entry.id,), timers=(entry.id,))
        expect({entry.id: entry}, dict(found.entries), f"the entry of id {entry.id!r}")
        expect({item.seq: item}, dict(found.items), f"the work of id {entry.id!r}")
        expect({timer.id: timer}, dict(found.timers), f"the timer of id {timer.id!r}")
    expect(list(range(1, len(NAMES) + 1)), await bench.head_seqs(), "the heads, with a lane of every name")

    keys = [key for name in NAMES for key in (SessionKey(name, "one"), SessionKey("names", name))]
    for key in keys:
        await bench.append("main", key=key)
    for key in keys:
        expect(1, (await bench.look(key)).last_seq, f"last_seq of {key}")


async def check_payloads_come_back_byte_for_byte(bench: Bench) -> None:
    """A payload is text: nothing in it is read, ordered, rounded or normalised."""
    entries = tuple(order(seq, payload=payload) for seq, payload in enumerate(PAYLOADS, 1))
    drafts = tuple(Draft(entry.id, entry.type, entry.payload, "main") for entry in entries)
    items = tuple(WorkItem(entry, "main") for entry in entries)
    await bench.put(KEY, Plan(None, entries=entries, items=items, timers=(Timer("t", 0, 0, drafts),)))
    found = await bench.look(ids=[entry.id for entry in entries], timers=("t",))
    timer = found.timers["t"]
    carried = [draft.payload for draft in timer.drafts] if isinstance(timer, Timer) else []
    places = {
        "the log": [entry.payload for entry in await bench.store.read(KEY, 0, 100)],
        "a look-up": [found.entries[entry.id].payload for entry in entries],
        "open work": [found.items[entry.seq].entry.payload for entry in entries],
        "a timer": carried,
    }
    for place, payloads in places.items():
        for payload, came in zip(PAYLOADS, payloads, strict=True):
            expect(payload, came, f"a payload in {place}")


async def check_endings_are_noted(bench: Bench) -> None:
    """An ending is noted on its entry, wherever that is read, and on no other."""
    items = await bench.append("main", "main", "main")
    endings = {1: Ending(EndingKind.CANCELLED, ""), 3: Ending(EndingKind.SKIPPED, "spät, aber doch: 🍸")}
    await bench.put(KEY, Plan(None, settled=(1, 3), endings=endings))
    log = [replace(item.entry, ending=endings.get(item.seq)) for item in items]
    expect(log, await bench.store.read(KEY, 0, 9), "the log")
    found = await bench.look(ids=("e1", "e2", "e3"))
    expect({entry.id: entry for entry in log}, dict(found.entries), "the entries looked up by id")


async def check_work_comes_back_as_it_was(bench: Bench) -> None:
    """Every field of open work is kept, and can be taken back."""
    plain = await bench.append("a", "b", "c", "d")
    dead = DeadLetter(Failure("ValueError", "näh: 🍸\n'; --"), FAR_MS)
    changed = (
        replace(plain[0], attempt=1, lost=2, ready_at_ms=FAR_MS, claim=Claim("a holder: 🍸", FAR_MS), key="🍸"),
        replace(plain[1], attempt=2**31, failures=2**31, ready_at_ms=1, parked_until_ms=FAR_MS, progress=PAYLOADS[-1]),
        replace(plain[2], attempt=3, failures=4, lost=5, dead=dead, key="k", progress='{"b": 1,"a":"\\u0000🍸"}'),
        replace(plain[3], claim=Claim("h", 0), parked_until_ms=0, dead=DeadLetter(Failure("", ""), 0), key="k"),
    )
    for items in (changed, plain, tuple(reversed(changed))):
        await bench.put(KEY, Plan(None, items=items))
        expected = {item.seq: item for item in items}
        expect(expected, dict((await bench.look(seqs=(1, 2, 3, 4))).items), "open work looked up by seq")
        expect(expected, {item.seq: item for item in (await bench.look(heads=True)).heads}, "the heads")
        letters = [(KEY, expected[seq]) for seq in sorted(expected) if expected[seq].dead is not None]
        expect(letters, await bench.store.dead_letters(), "the dead letters")


async def check_heads_are_the_first_of_each_lane(bench: Bench) -> None:
    """The heads are the first open item of each lane, whatever its state, and nothing else."""
    items = await bench.append("a", "b", "a", "b", "c", "a")
    expect([1, 2, 5], await bench.head_seqs(), "the heads of three lanes that were appended to in turn")
    dead = replace(items[0], attempt=1, dead=DeadLetter(Failure("E", "m"), 0))
    held = replace(items[1], attempt=1, claim=Claim("h", 1))
    await bench.put(KEY, Plan(None, items=(dead, held)))
    expect([1, 2, 5], await bench.head_seqs(), "the heads, of which one is dead and one is claimed")
    await bench.append("d", "c", key=OTHER)
    expect([1, 2, 5], await bench.head_seqs(), "the heads, after another session was appended to")


async def check_heads_are_promoted(bench: Bench) -> None:
    """When a head settles, the next open item of its lane is the head at once."""
    await bench.append("a", "b", "a", "b", "c", "a")
    steps: tuple[tuple[tuple[int, ...], tuple[str, ...], list[int]], ...] = (
        ((1,), (), [2, 3, 5]),
        ((5,), (), [2, 3]),
        ((), ("c", "c"), [2, 3, 7]),
        ((3,), ("a",), [2, 6, 7]),
        ((2, 4), ("b",), [6, 7, 10]),
        ((6, 9), (), [7, 10]),
        ((7, 8, 10), ("d", "c"), [11, 12]),
        ((11, 12), (), []),
        ((), ("a", "a"), [13]),
    )
    for settled, lanes, heads in steps:

        def decide(
            snapshot: Snapshot, now_ms: int, settled: tuple[int, ...] = settled, lanes: tuple[str, ...] = lanes
        ) -> Plan[None]:
            fresh = [WorkItem(order(seq, now_ms), lane) for seq, lane in enumerate(lanes, snapshot.last_seq + 1)]
            return Plan(None, entries=tuple(item.entry for item in fresh), items=tuple(fresh), settled=settled)

        await bench.store.transact(KEY, Needs(seqs=settled), decide)
        expect(heads, await bench.head_seqs(), f"the heads once {settled} are settled and {lanes} are appended")


async def check_timers_come_back_as_they_were(bench: Bench) -> None:
    """A timer is kept with all its drafts until it is delivered; a tombstone takes its place and stays."""
    drafts = (Draft("t1", "order", '{"b":1,"a":"🍸"}', "main"), Draft("t2", "note", "null", "other", "a key: 🍸"))
    timers = (
        Timer("delayed", FAR_MS, 0, drafts),
        Timer("instant", FAR_MS, None, drafts[:1], "a rule: 🍸"),
        Timer("empty", 1, FAR_MS, ()),
        Tombstone("cancelled"),
    )
    names = [timer.id for timer in timers]
    await bench.put(KEY, Plan(None, timers=timers))
    expect({timer.id: timer for timer in timers}, dict((await bench.look(timers=names)).timers), "the timers by id")
    expect({}, dict((await bench.look(OTHER, timers=names)).timers), "the timers of another session")
    await bench.put(KEY, Plan(None, timers=(Tombstone("delayed"), Timer("instant", 5, 6, ())), delivered=("empty",)))
    left = {"delayed": Tombstone("delayed"), "instant": Timer("instant", 5, 6, ()), "cancelled": Tombstone("cancelled")}
    expect(left, dict((await bench.look(timers=names)).timers), "the timers after a cancel, a change and a delivery")
    await bench.put(KEY, Plan(None, timers=(Timer("instant", 5, 6, drafts, ""),)))
    found = dict((await bench.look(timers=("instant",))).timers)
    expect({"instant": Timer("instant", 5, 6, drafts, "")}, found, "the timer that was changed again")


async def check_due_timers(bench: Bench) -> None:
    """A timer is due from its instant on; the snapshot tells which are due, what they would repeat, what comes next."""
    now_ms = await bench.now_ms()
    await bench.append("main")
    known = Draft("e1", "order", "{}", "main")
    first = Timer("first", now_ms, 0, (known, Draft("t1", "order", "{}", "main")))
    await bench.put(KEY, Plan(None, timers=(first, plain_timer("later", now_ms + 2 * HOUR_MS), Tombstone("never"))))
    found = await bench.look(heads=True)
    expect((first,), found.due_timers, "the due timers")
    expect(now_ms + 2 * HOUR_MS, found.next_timer_at_ms, "next_timer_at_ms")
    expect(["e1"], list(found.entries), "the entries that due timers would append again")
    found = await bench.look(OTHER, heads=True)
    expect(((), None), (found.due_timers, found.next_timer_at_ms), "the timers of another session")

    bench.clock.move(HOUR_MS)
    expect(now_ms + HOUR_MS <= await bench.now_ms(), True, "whether the store's clock was moved")  # noqa: FBT003
    expect((first,), (await bench.look(heads=True)).due_timers, "the due timers an hour later")
    bench.clock.move(HOUR_MS)
    found = await bench.look(heads=True)
    expect({"first", "later"}, {timer.id for timer in found.due_timers}, "the due timers two hours later")
    expect(None, found.next_timer_at_ms, "next_timer_at_ms where no timer is left")
    await bench.put(KEY, Plan(None, delivered=("first", "later")))
    expect((), (await bench.look(heads=True)).due_timers, "the due timers once they are delivered")


async def check_due_timers_are_bounded(bench: Bench) -> None:
    """However many timers are due, a snapshot holds the earliest few, and says that others wait."""
    now_ms = await bench.now_ms()
    timers = tuple(plain_timer(f"t{number}", now_ms - 9_999 + number) for number in range(MAX_DUE_TIMERS + 200))
    await bench.put(KEY, Plan(None, timers=timers))
    delivered: list[str] = []
    while due := (found := await bench.look(heads=True)).due_timers:
        if len(due) > MAX_DUE_TIMERS:
            raise AssertionError(f"due timers in one snapshot: expected {MAX_DUE_TIMERS} at most, got {len(due)}")
        delivered += sorted((timer.id for timer in due), key=lambda name: int(name[1:]))
        left = len(timers) - len(delivered)
        if left < 0:
            raise AssertionError(f"delivered timers: expected {len(timers)} in all, got {len(delivered)}")
        following = timers[len(delivered)].due_at_ms if left else None
        expect(following, found.next_timer_at_ms, f"next_timer_at_ms with {left} due timers left out")
        await bench.put(KEY, Plan(None, delivered=tuple(timer.id for timer in due)))
    expect([timer.id for timer in timers], delivered, "the timers in the order in which they were due")


async def check_decisions_get_the_time_of_the_store(bench: Bench) -> None:
    """A decision is told the time by the store's one clock, which never runs backwards."""
    before_ms = await bench.now_ms()
    bench.clock.move(HOUR_MS)
    after_ms = await bench.now_ms()
    expect_near(before_ms + HOUR_MS, after_ms, "the time an hour later")
    blocking_ms = bench.store.transact_blocking(KEY, Needs(), lambda _snapshot, now_ms: Plan(now_ms))
    if not after_ms <= blocking_ms <= after_ms + SLACK_MS:
        raise AssertionError(f"the time in transact_blocking: expected {after_ms} ms or little more, got {blocking_ms}")
