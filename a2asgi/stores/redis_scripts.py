"""The Lua scripts of the Redis stores: each reads or writes one slot, and decides nothing.

A shard's `mark` names the layout and the data it belongs to; a script that finds another one, or none, does nothing
but say so. Where one is written, `lanes`, `heads`, `keyed`, `due` and the shard's indexes are derived from its rows.
"""

from dataclasses import dataclass, field
from hashlib import sha1

from a2asgi.ports import DUE_TIMERS

TOKEN_CHARS = 12
KNOWN_TOKENS = 8
"""How many of a session's last writes are known by their tokens, so that who lost an answer can ask again."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text, and the digest by which a server that has seen it knows it."""

    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        digest = sha1(self.text.encode()).hexdigest()  # noqa: S324 - the name that Redis gives it
        object.__setattr__(self, "sha", digest)


_MARKED = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {'lost'} end
"""

_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2]
local function whole(number) return string.format('%.0f', number) end
"""

_NAMES = """
local escapes = {['\\0'] = '\\1\\1', ['\\1'] = '\\1\\2'}
local function esc(text) return (string.gsub(text, '[%z\\1]', escapes)) end
local function padded(seq) return string.format('%016.0f', tonumber(seq)) end
"""

OPEN = Script("""
if ARGV[1] ~= '' then redis.call('SET', KEYS[1], ARGV[1], 'NX') end
return redis.call('GET', KEYS[1]) or ''
""")
"""Keys: mark. Arguments: the mark to set where there is none, or nothing. Answers the mark."""

# Keys of a session: mark, meta, log, ids, work, lanes, heads, keyed, timers, due.
LOAD = Script(f"""
{_MARKED}{_NOW}{_NAMES}
local out = {{'ok', whole(now), '', '0', {{}}, {{}}, {{}}, '', {{}}, {{}}, '', {{}}}}
local meta = redis.call('HMGET', KEYS[2], 't', 'n')
if not meta[1] then return out end
out[3], out[4] = string.sub(meta[1], 1, {TOKEN_CHARS}), meta[2] or '0'
local needs = cjson.decode(ARGV[3])

local function fields(key, names, found)
  for first = 1, #names, 1000 do
    local last = math.min(first + 999, #names)
    local values = redis.call('HMGET', key, unpack(names, first, last))
    for i, value in ipairs(values) do
      if value then found(names[first + i - 1], value) end
    end
  end
end
local function pairs_into(place)
  return function(name, value)
    place[#place + 1] = name
    place[#place + 1] = value
  end
end

local wanted, seqs = {{}}, {{}}
local function want(seq)
  if not wanted[seq] then
    wanted[seq] = true
    seqs[#seqs + 1] = seq
  end
end

if needs.heads then
  local heads = redis.call('ZRANGE', KEYS[7], 0, -1, 'WITHSCORES')
  for i = 2, #heads, 2 do
    want(heads[i])
    out[7][#out[7] + 1] = heads[i]
  end
  local due = redis.call('ZRANGEBYSCORE', KEYS[10], '-inf', whole(now), 'LIMIT', 0, {DUE_TIMERS})
  fields(KEYS[9], due, pairs_into(out[10]))
  for i = 2, #out[10], 2 do
    for _, id in ipairs(cjson.decode(out[10][i])[3]) do needs.ids[#needs.ids + 1] = id end
  end
  local later = redis.call('ZRANGEBYSCORE', KEYS[10], '-inf', '+inf', 'WITHSCORES', 'LIMIT', #due, 1)
  if later[2] then out[11] = whole(tonumber(later[2])) end
end

fields(KEYS[4], needs.ids, function(_, seq) want(seq) end)
local asked = {{}}
for i, seq in ipairs(needs.seqs) do asked[i] = whole(seq) end
fields(KEYS[5], asked, want)
fields(KEYS[9], needs.timers, pairs_into(out[9]))
for _, key in ipairs(needs.keys) do
  local start = esc(key)
  local found = redis.call('ZRANGEBYLEX', KEYS[8], '[' .. start .. '\\0', '(' .. start .. '\\1', 'LIMIT', 0, 1)
  if found[1] then pairs_into(out[12])(key, string.sub(found[1], #start + 3)) end
end
if needs.behind then
  local row = redis.call('HGET', KEYS[5], whole(needs.behind))
  if row then
    local lane = esc(cjson.decode(row)[1])
    local after = '(' .. lane .. '\\0' .. padded(needs.behind)
    local found = redis.call('ZRANGEBYLEX', KEYS[6], after, '(' .. lane .. '\\1', 'LIMIT', 0, 1)
    if found[1] then
      out[8] = whole(tonumber(string.sub(found[1], -16)))
      want(out[8])
    end
  end
end

fields(KEYS[5], seqs, pairs_into(out[6]))
for _, seq in ipairs(seqs) do
  local row = redis.call('ZRANGEBYSCORE', KEYS[3], seq, seq)[1]
  if row then out[5][#out[5] + 1] = row end
end
return out
""")
"""Arguments: mark, offset_ms, the needs as JSON. Answers the time, the last write's token, the last seq, then log
rows, work rows by seq, the heads' seqs, the seq behind, timers, due timers, the next one's time, ids by key."""

_WRITTEN = f"""
local at = 4
local function take() at = at + 1; return ARGV[at] end
local function times(doing) for _ = 1, tonumber(take()) do doing() end end
local member = ARGV[4]
local function place(command, key, name)
  if command == 'ZADD' then redis.call('ZADD', key, 0, name) else redis.call('ZREM', key, name) end
end

local touched = {{}}
local function work(command, seq, row)
  local lane, key, dead, id = unpack(cjson.decode(row), 1, 4)
  touched[lane] = true
  place(command, KEYS[6], esc(lane) .. '\\0' .. padded(seq))
  if dead ~= cjson.null then
    place(command, KEYS[13], member .. '\\0' .. padded(seq))
  elseif key ~= cjson.null then
    place(command, KEYS[8], esc(key) .. '\\0w' .. id)
  end
end
local function timer(command, id, row)
  local key, due = unpack(cjson.decode(row), 1, 2)
  if due == nil then return end
  if command == 'ZADD' then redis.call('ZADD', KEYS[10], whole(due), id) else redis.call('ZREM', KEYS[10], id) end
  if key ~= cjson.null then place(command, KEYS[8], esc(key) .. '\\0t' .. id) end
end
local function replaced(key, name, derive)
  local row = redis.call('HGET', key, name)
  if row then derive('ZREM', name, row) end
end

local known = redis.call('HMGET', KEYS[2], 't', 'w')
local tokens, watched_until = known[1] or '', tonumber(known[2] or 0)
if string.find(tokens, ARGV[3], 1, true) then return {{'ok'}} end
if string.sub(tokens, 1, {TOKEN_CHARS}) ~= ARGV[2] then return {{'conflict'}} end
redis.call('HSET', KEYS[2], 't', string.sub(ARGV[3] .. tokens, 1, {TOKEN_CHARS * KNOWN_TOKENS}))
redis.call('ZADD', KEYS[12], 0, member)
"""

# Keys: those of a session, then wakes, sessions, dead, expiring of its shard. The first write is one that Redis
# refuses where it would refuse any (out of memory, read-only), so that no later one is: a plan is never half there.
WRITE = Script(f"""
{_MARKED}{_NAMES}
local function whole(number) return string.format('%.0f', number) end
{_WRITTEN}
local appended = false
times(function()
  local seq, id, row = take(), take(), take()
  appended = true
  redis.call('ZADD', KEYS[3], seq, row)
  redis.call('HSET', KEYS[4], id, seq)
  redis.call('HSET', KEYS[2], 'n', seq)
end)
times(function()
  local seq = take()
  replaced(KEYS[5], seq, work)
  redis.call('HDEL', KEYS[5], seq)
end)
times(function()
  local seq, row = take(), take()
  replaced(KEYS[5], seq, work)
  redis.call('HSET', KEYS[5], seq, row)
  work('ZADD', seq, row)
end)
times(function()
  local seq, ending = take(), take()
  local row = redis.call('ZRANGEBYSCORE', KEYS[3], seq, seq)[1]
  if row then
    redis.call('ZREM', KEYS[3], row)
    redis.call('ZADD', KEYS[3], seq, string.match(row, '^[^\\n]*') .. '\\n' .. ending)
  end
end)
times(function()
  local seq, expires = take(), take()
  redis.call('ZADD', KEYS[14], expires, member .. '\\0' .. padded(seq))
end)
times(function()
  local id, row = take(), take()
  replaced(KEYS[9], id, timer)
  redis.call('HSET', KEYS[9], id, row)
  timer('ZADD', id, row)
end)
times(function()
  local id = take()
  replaced(KEYS[9], id, timer)
  redis.call('HDEL', KEYS[9], id)
end)
local kind, wake = take(), take()
if kind == 'at' and wake == '' then
  redis.call('ZREM', KEYS[11], member)
elseif kind ~= '' then
  local known = redis.call('ZSCORE', KEYS[11], member)
  if kind == 'at' or not known or tonumber(known) > tonumber(wake) then
    redis.call('ZADD', KEYS[11], wake, member)
  end
end
for lane in pairs(touched) do
  local start = esc(lane)
  local first = redis.call('ZRANGEBYLEX', KEYS[6], '[' .. start .. '\\0', '(' .. start .. '\\1', 'LIMIT', 0, 1)[1]
  if first then
    redis.call('ZADD', KEYS[7], whole(tonumber(string.sub(first, -16))), lane)
  else
    redis.call('ZREM', KEYS[7], lane)
  end
end
local channel, hint, is_due, now = take(), take(), take(), take()
if is_due == '1' or (appended and watched_until > tonumber(now)) then
  redis.pcall('PUBLISH', channel, hint)
end
return {{'ok'}}
""")
"""Arguments: mark, the token that was loaded, the token of this write, the session's name in its shard, then each part
of the plan: how many, and their rows; then a channel and what is told there: to all if the session is due, and else
to who watches it. A user who may not publish writes all the same. Answers ok, also where this write is already there;
or conflict."""

WATCH = Script(f"""
{_MARKED}{_NOW}
if redis.call('HEXISTS', KEYS[2], 't') == 0 then return {{'ok', '0'}} end
redis.call('HSET', KEYS[2], 'w', whole(now + ARGV[3]))
return {{'ok', '1'}}
""")
"""Keys: mark, meta. Arguments: mark, offset_ms, for_ms. Answers whether there is the session, which is watched now."""

READ = Script(f"""
{_MARKED}
return {{'ok', redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. ARGV[2], '+inf', 'LIMIT', 0, ARGV[3])}}
""")
"""Keys: mark, log. Arguments: mark, after_seq, limit. Answers log rows."""

PEEK = Script(f"""
{_MARKED}{_NOW}
local found = {{}}
for i = 2, #KEYS do found[i - 1] = redis.call('ZRANGE', KEYS[i], 0, ARGV[3], 'WITHSCORES') end
return {{'ok', whole(now), found}}
""")
"""Keys: mark, indexes by time. Arguments: mark, offset_ms, the last place. Answers the time, and of each index the
earliest names with their times."""

TAKE = Script(f"""
{_MARKED}{_NOW}
local most, late, leased, seen = tonumber(ARGV[3]), tonumber(ARGV[4]), now + ARGV[5], {{}}
for i = 2, #KEYS do
  local found = redis.call('ZRANGE', KEYS[i], 0, most, 'WITHSCORES')
  for j = 1, #found, 2 do seen[#seen + 1] = {{tonumber(found[j + 1]), found[j], KEYS[i]}} end
end
table.sort(seen, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
local taken, next_at = {{}}, nil
for _, wake in ipairs(seen) do
  if #taken == most or wake[1] + late > now then
    next_at = wake[1]
    break
  end
  taken[#taken + 1] = wake[2]
  redis.call('ZADD', wake[3], whole(leased), wake[2])
end
if #taken > 0 then next_at = math.min(next_at or leased, leased) end
return {{'ok', whole(now), taken, next_at and whole(next_at) or ''}}
""")
"""Keys: mark, wakes by contract. Arguments: mark, offset_ms, how many at most, late_ms, lease_ms. Answers the time, the
names that were taken, the earliest first, and when the next is due."""

CLAIM = Script(f"""
{_MARKED}{_NOW}
local late, lease, answers = tonumber(ARGV[3]), tonumber(ARGV[4]), {{}}
for i = 5, #ARGV, 2 do
  local key, member = KEYS[tonumber(ARGV[i])], ARGV[i + 1]
  local wake = redis.call('ZSCORE', key, member)
  local won = wake and wake + late <= now
  if won then
    wake = whole(now + lease)
    redis.call('ZADD', key, wake, member)
  end
  answers[#answers + 1] = won and '1' or '0'
  answers[#answers + 1] = wake and whole(tonumber(wake)) or ''
end
return {{'ok', whole(now), answers}}
""")
"""Keys: mark, wakes by contract. Arguments: mark, offset_ms, late_ms, lease_ms, then key numbers and names. Answers
the time, and for each name whether it was taken, and its wake-up now."""

LIST = Script(f"""
{_MARKED}
return {{'ok', redis.call('ZRANGEBYLEX', KEYS[2], ARGV[2], ARGV[3], 'LIMIT', 0, ARGV[4])}}
""")
"""Keys: mark, an index by name. Arguments: mark, first, last, limit. Answers names."""

INFO = Script(f"""
{_MARKED}
local infos = {{}}
for i = 2, #KEYS, 2 do
  local known = redis.call('HMGET', KEYS[i], 't', 'n')
  infos[#infos + 1] = known[1] and (known[2] or '0') or ''
  infos[#infos + 1] = redis.call('ZSCORE', KEYS[i + 1], ARGV[i / 2 + 1]) or ''
end
return {{'ok', infos}}
""")
"""Keys: mark, then meta and wakes of each session. Arguments: mark, then the sessions' names. Answers the last seq,
or nothing where there is no session, and the wake-up of each."""

PURGE = Script(f"""
{_MARKED}{_NOW}{_NAMES}
local member, purged = ARGV[4], 0
for i = 5, #ARGV do
  local seq = ARGV[i]
  local name = member .. '\\0' .. padded(seq)
  local expires = redis.call('ZSCORE', KEYS[9], name)
  if expires and tonumber(expires) <= now then
    redis.call('ZREM', KEYS[9], name)
    local row = redis.call('ZRANGEBYSCORE', KEYS[3], seq, seq)[1]
    if row then
      redis.call('HDEL', KEYS[4], cjson.decode(string.match(row, '^[^\\n]*'))[1])
      redis.call('ZREM', KEYS[3], row)
      purged = purged + 1
    end
  end
end
if redis.call('ZCARD', KEYS[3]) + redis.call('HLEN', KEYS[5]) + redis.call('HLEN', KEYS[6]) == 0 then
  redis.call('DEL', KEYS[2])
  redis.call('ZREM', KEYS[7], member)
  redis.call('ZREM', KEYS[8], member)
elseif purged > 0 then
  local tokens = redis.call('HGET', KEYS[2], 't') or ''
  redis.call('HSET', KEYS[2], 't', string.sub(ARGV[3] .. tokens, 1, {TOKEN_CHARS * KNOWN_TOKENS}))
end
return {{'ok', tostring(purged)}}
""")
"""Keys: mark, meta, log, ids, work, timers, wakes, sessions, expiring. Arguments: mark, offset_ms, the token of this
write, the session's name in its shard, seqs. Answers how many of them were removed."""
