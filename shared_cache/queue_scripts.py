"""Lua scripts of the queue in front of the lanes: who is next, and taking exactly those."""

from __future__ import annotations

from shared_cache.scripts import FAIR_PLACE, MODEL_OF, RENDER_PRELUDE

LOOK = (
    MODEL_OF
    + """
-- ARGV: ids. What a policy needs to know of each, and never changes while it waits.
local got = {}
for i, id in ipairs(ARGV) do
  local key = 'fl:render:' .. id
  local at = redis.call('HMGET', key, 'model', 'bucket', 'styles', 'rows', 'steps', 'n', 'created_s', 'deadline_s')
  at[1] = at[1] or model_of(id) or ''
  got[i] = at
end
return got
"""
)

TAKE = (
    RENDER_PRELUDE
    + """
-- ARGV: group, consumer, ids. Gives those that still wait; each is then held in its lane like any pending entry.
-- XCLAIM with FORCE holds an entry that was never read: that is how the queue's order, not the lane's, decides.
local group, consumer = ARGV[1], ARGV[2]

local function claim(stream, entry)
  return redis.pcall('XCLAIM', stream, group, consumer, 0, entry, 'FORCE')
end

local function hold(stream, entry, id)
  local held = claim(stream, entry)
  if held.err then
    redis.call('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
    held = claim(stream, entry)
  end
  return #held > 0 and is_entry_of(held[1], id)
end

local got = {}
for i = 3, #ARGV do
  local id = ARGV[i]
  local key, place = 'fl:render:' .. id, redis.call('ZSCORE', 'fl:queue', id)
  local at = redis.call('HMGET', key, 'stream', 'group', 'entry', 'attempt')
  if place and at[1] then
    redis.call('ZREM', 'fl:queue', id)
    redis.call('HSET', key, 'place', place)
    if tonumber(place) > tonumber(redis.call('GET', 'fl:vtime') or '0') then
      redis.call('SET', 'fl:vtime', place)
    end
    if not hold(at[1], at[3], id) then
      enter_stream(key, at[1], at[2], id, at[4])
      at[3] = redis.call('HGET', key, 'entry')
      hold(at[1], at[3], id)
    end
    got[#got + 1] = {at[1], at[3], id, at[4]}
  end
end
return got
"""
)

HAND_BACK = (
    RENDER_PRELUDE
    + """
-- ARGV: group, consumer, then id and attempt of each. What we hold and have not finished waits again, where it waited.
-- The record's attempt moves on, which fences our late writes, and neither of the two counts as spent.
local group, consumer = ARGV[1], ARGV[2]
local given = {}
for i = 3, #ARGV, 2 do
  local id, attempt = ARGV[i], ARGV[i + 1]
  local key = 'fl:render:' .. id
  local at = redis.call('HMGET', key, 'stream', 'entry', 'place')
  local held = at[1] and redis.pcall('XPENDING', at[1], group, at[2], at[2], 1, consumer)
  if writable(id, attempt) == 'running' and held and not held.err and #held > 0 then
    redis.call('XACK', at[1], group, at[2])  -- it stays in its lane, held by nobody
    redis.call('HINCRBY', key, 'attempt', 1)
    redis.call('HINCRBY', key, 'unspent', 2)
    redis.call('HSET', key, 'state', 'queued', 'step', 0, 'batch_sizes', '')
    redis.call('ZADD', 'fl:queue', at[3] or 0, id)
    settle(id, 'queued')
    redis.call('LPUSH', 'fl:wake:' .. group, '1')
    redis.call('LTRIM', 'fl:wake:' .. group, 0, 7)
    given[#given + 1] = id
  end
end
return given
"""
)

AHEAD = (
    FAIR_PLACE
    + """
-- ARGV: owner, how many to look at. The queue as a render meets it that this owner would add now.
-- Returns: renders not ended, how many of them are the owner's, how many wait before it, ids and claims of those that
-- wait as far as it looked, then ids, steps done and claims of those that run. What nobody claims any more is false.
local function claims_of(ids)
  return #ids == 0 and {} or redis.call('HMGET', 'fl:claims', unpack(ids))
end

local waiting = redis.call('ZRANGE', 'fl:queue', 0, tonumber(ARGV[2]) - 1)
local running, steps = {}, {}
for i, text in ipairs(redis.call('HGETALL', 'fl:stepping')) do
  local into = i % 2 == 1 and running or steps
  into[#into + 1] = text
end
local place = fair_place(ARGV[1])
local open, own = redis.call('ZCARD', 'fl:open'), redis.call('SCARD', 'fl:open:' .. ARGV[1])
local before = redis.call('ZCOUNT', 'fl:queue', '-inf', place)
return {open, own, before, waiting, claims_of(waiting), running, steps, claims_of(running)}
"""
)

TIDY = """
-- KEYS: lanes. ARGV: group, how many to look at in each, milliseconds in which one process does it for all, or 0.
-- Drops what no render calls its entry, and returns it by lane. Goes on where the last call ended, whoever made it.
local function tidy(lane)
  if ARGV[3] ~= '0' and not redis.call('SET', 'fl:tidying:' .. lane, '1', 'NX', 'PX', ARGV[3]) then return {} end
  local dropped, last, after = {}, '', redis.call('HGET', 'fl:tidied', lane) or ''
  for _, entry in ipairs(redis.call('XRANGE', lane, after == '' and '-' or '(' .. after, '+', 'COUNT', ARGV[2])) do
    last = entry[1]
    local fields = {}
    for f = 1, #entry[2], 2 do fields[entry[2][f]] = entry[2][f + 1] end
    local at = redis.call('HMGET', 'fl:render:' .. (fields['id'] or ''), 'stream', 'entry')
    if at[1] ~= lane or at[2] ~= last then
      redis.pcall('XACK', lane, ARGV[1], last)
      redis.call('XDEL', lane, last)
      dropped[#dropped + 1] = last
    end
  end
  redis.call('HSET', 'fl:tidied', lane, last)
  return dropped
end

local tidied = {}
for index, lane in ipairs(KEYS) do tidied[index] = tidy(lane) end
return tidied
"""

REPAIR = (
    RENDER_PRELUDE
    + """
-- ARGV: how many to look at, milliseconds in which one process does it for all, or 0.
-- Every render that has not ended has an entry, and waits or is held; whoever lost that (a deleted stream or group, a
-- stray ack) gets it back. Goes on where the last call ended, whoever made it.
if ARGV[2] ~= '0' and not redis.call('SET', 'fl:repairing', '1', 'NX', 'PX', ARGV[2]) then return {} end

local function held(at)
  local found = redis.pcall('XPENDING', at[1], at[2], at[3], at[3], 1)
  return not found.err and #found > 0
end

local mended, from, count = {}, tonumber(redis.call('GET', 'fl:repaired') or '0'), tonumber(ARGV[1])
local ids = redis.call('ZRANGE', 'fl:open', from, from + count - 1)
redis.call('SET', 'fl:repaired', #ids < count and 0 or from + count)
for _, id in ipairs(ids) do
  local key = 'fl:render:' .. id
  local at = redis.call('HMGET', key, 'stream', 'group', 'entry', 'attempt')
  if not at[1] then
    redis.call('ZREM', 'fl:open', id)
    redis.call('ZREM', 'fl:queue', id)
    redis.call('ZREM', 'fl:due', id)
    redis.call('HDEL', 'fl:stepping', id)
    redis.call('HDEL', 'fl:claims', id)
  else
    local found = redis.call('XRANGE', at[1], at[3], at[3])
    local lost = #found == 0 or not is_entry_of(found[1], id)
    if lost then enter_stream(key, at[1], at[2], id, at[4]) end
    local waits = at[2] ~= 'final' or redis.call('ZSCORE', 'fl:queue', id)
    if not waits and (lost or not held(at)) then
      redis.call('ZADD', 'fl:queue', 0, id)
      lost = true
    end
    if lost then mended[#mended + 1] = id end
  end
end
return mended
"""
)
