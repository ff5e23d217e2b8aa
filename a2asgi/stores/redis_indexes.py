"""What the Redis stores find through a shard's indexes: wake-ups, dead letters, sessions, what has expired.

An index is in the slot of the sessions that stand in it, and is written by the script that writes the session, so
none ever tells less, or more, than the sessions do.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from secrets import token_hex
from typing import Any, NamedTuple

from a2asgi.ports import SessionInfo, SessionKey, Wakes
from a2asgi.stores import redis_records as records
from a2asgi.stores import redis_scripts as scripts
from a2asgi.stores.redis_link import Data, pause, together
from a2core import Needs, Snapshot, WorkItem

LOOKS = 16
"""How often a claim looks for what others have left at most."""


class _Seen(NamedTuple):
    """A name in an index by time, in the order in which they are due."""

    in_ms: int
    name: str
    shard: int
    part: int


async def load(data: Data, key: SessionKey, needs: Needs) -> tuple[int, str, Snapshot]:
    """The time, the token of the session's last write, and what is needed of it, as of one instant."""
    names = data.layout.names(key, *records.PARTS)
    arguments: list[str | int] = [data.offset_ms, records.needs_text(needs)]
    now_ms, token, *found = await data.ask(scripts.LOAD, data.layout.shard_of(key), names, arguments)
    return int(now_ms), token, records.snapshot(needs, found)


async def claim_wakes(data: Data, contracts: Sequence[str], limit: int, lease_ms: int, late_ms: int) -> Wakes:
    """Take what is due: by one script on one shard; of several, what is due first is known once all were looked at.

    Where others took first what was seen there, look again, for as long as there is more.
    """
    if len(data.shards) == 1:
        return await _take(data, contracts, limit, lease_ms, late_ms)
    due: list[SessionKey] = []
    for looked in range(LOOKS):
        wakes = await _claim(data, contracts, limit - len(due), lease_ms, late_ms)
        due += wakes.due
        if len(due) >= limit or wakes.next_in_ms is None or wakes.next_in_ms > 0:
            break
        await pause(looked)
    return Wakes(tuple(due), wakes.next_in_ms)


async def _take(data: Data, contracts: Sequence[str], limit: int, lease_ms: int, late_ms: int) -> Wakes:
    """Take what is due on the only shard. A script that runs twice leaves what the first run took to its lease."""
    keys = [data.layout.name(0, "wakes", records.escaped(contract)) for contract in contracts]
    now_ms, taken, at_ms = await data.ask(scripts.TAKE, 0, keys, [data.offset_ms, limit, late_ms, lease_ms])
    next_in_ms = int(at_ms) + late_ms - int(now_ms) if at_ms else None
    return Wakes(tuple(map(records.key_of, taken)), next_in_ms)


async def _claim(data: Data, contracts: Sequence[str], limit: int, lease_ms: int, late_ms: int) -> Wakes:
    """Look what is due on each shard, then take of it what is still due."""
    parts = [("wakes", records.escaped(contract)) for contract in contracts]
    seen = await _earliest(data, parts, limit, late_ms)
    due = [wake for wake in seen[:limit] if wake.in_ms <= 0]
    by_shard: dict[int, list[_Seen]] = defaultdict(list)
    for wake in due:
        by_shard[wake.shard].append(wake)

    async def claim(shard: int, wakes: list[_Seen]) -> tuple[set[str], list[int]]:
        keys = [data.layout.name(shard, *part) for part in parts]
        pairs = [value for wake in wakes for value in (wake.part + 2, wake.name)]
        arguments = [data.offset_ms, late_ms, lease_ms, *pairs]
        now_ms, answers = await data.ask(scripts.CLAIM, shard, keys, arguments, once=True)
        won = {wake.name for wake, answer in zip(wakes, answers[::2], strict=True) if answer == "1"}
        return won, [int(at_ms) + late_ms - int(now_ms) for at_ms in answers[1::2] if at_ms]

    claimed = await together(partial(claim, *shard) for shard in by_shard.items())
    won = {name for names, _ in claimed for name in names}
    left = [in_ms for _, later in claimed for in_ms in later] + [wake.in_ms for wake in seen[len(due) :][:1]]
    return Wakes(tuple(records.key_of(wake.name) for wake in due if wake.name in won), min(left, default=None))


async def purge(data: Data, limit: int) -> int:
    """Remove what has expired, and then the sessions that hold nothing more."""
    seen = await _earliest(data, [("expiring", "")], limit, 0)
    seqs: dict[SessionKey, list[int]] = defaultdict(list)
    for event in seen[:limit]:
        if event.in_ms <= 0:
            key, seq = records.event_at(event.name)
            seqs[key].append(seq)

    async def remove(key: SessionKey, gone: list[int]) -> int:
        names = data.layout.names(key, "meta", "log", "ids", "work", "timers", "wakes", "sessions", "expiring")
        arguments: list[str | int] = [
            data.offset_ms,
            token_hex(scripts.TOKEN_CHARS // 2),
            records.member_of(key),
            *gone,
        ]
        [purged] = await data.ask(scripts.PURGE, data.layout.shard_of(key), names, arguments, once=True)
        return int(purged)

    return sum(await together(partial(remove, *session) for session in seqs.items()))


async def dead_letters(
    data: Data, contract: str | None, after: tuple[SessionKey, int] | None, limit: int
) -> list[tuple[SessionKey, WorkItem]]:
    """A page of the dead letters."""
    found: list[tuple[SessionKey, WorkItem]] = []
    place = None if after is None else records.place_of(*after)
    while places := await _names(data, "dead", contract, place, limit - len(found)):
        seqs: dict[SessionKey, list[int]] = defaultdict(list)
        for key, seq in map(records.event_at, places):
            seqs[key].append(seq)
        loads = [partial(load, data, key, Needs(seqs=tuple(dead))) for key, dead in seqs.items()]
        for key, (_, _, seen) in zip(seqs, await together(loads), strict=True):
            items = (seen.items.get(seq) for seq in seqs[key])
            found += [(key, item) for item in items if item is not None and item.dead is not None]
        place = places[-1]
    return found


async def sessions(data: Data, contract: str | None, after: SessionKey | None, limit: int) -> list[SessionInfo]:
    """A page of the sessions."""
    found: list[SessionInfo] = []
    last = None if after is None else records.member_of(after)

    async def look(shard: int, keys: list[SessionKey]) -> list[SessionInfo]:
        names = [name for key in keys for name in data.layout.names(key, "meta", "wakes")]
        [infos] = await data.ask(scripts.INFO, shard, names, [records.member_of(key) for key in keys])
        return [
            SessionInfo(key, int(last_seq), int(float(wake)) if wake else None)
            for key, last_seq, wake in zip(keys, infos[::2], infos[1::2], strict=True)
            if last_seq != ""
        ]

    while members := await _names(data, "sessions", contract, last, limit - len(found)):
        by_shard: dict[int, list[SessionKey]] = defaultdict(list)
        for key in map(records.key_of, members):
            by_shard[data.layout.shard_of(key)].append(key)
        pages = await together(partial(look, *shard) for shard in by_shard.items())
        found += sorted((info for page in pages for info in page), key=lambda info: records.member_of(info.key))
        last = members[-1]
    return found


async def _earliest(data: Data, parts: Sequence[tuple[str, str]], limit: int, late_ms: int) -> list[_Seen]:
    """The earliest names of these indexes by time, one more than `limit` at least, if there are as many."""

    async def peek(shard: int) -> tuple[str, list[Any]]:
        keys = [data.layout.name(shard, *part) for part in parts]
        now_ms, found = await data.ask(scripts.PEEK, shard, keys, [data.offset_ms, limit])
        return now_ms, found

    peeked = await together(partial(peek, shard) for shard in data.shards) if parts else []
    return sorted(
        _Seen(int(float(at_ms)) + late_ms - int(now_ms), name, shard, part)
        for shard, (now_ms, found) in enumerate(peeked)
        for part, flat in enumerate(found)
        for name, at_ms in zip(flat[::2], flat[1::2], strict=True)
    )


async def _names(data: Data, part: str, contract: str | None, after: str | None, limit: int) -> list[str]:
    """Up to `limit` names of an index by name, in order."""
    first, last = records.names_of(contract, after)

    async def page(shard: int) -> list[str]:
        arguments: list[str | int] = [first, last, limit]
        [names] = await data.ask(scripts.LIST, shard, [data.layout.name(shard, part)], arguments)
        return list(names)

    pages = await together(partial(page, shard) for shard in data.shards) if limit > 0 else []
    return sorted(name for names in pages for name in names)[:limit]
