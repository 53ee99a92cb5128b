"""Lua scripts: every change that touches several keys happens in one of these, whole or not at all.

They name keys built from ids, so they need one server, not a cluster.
"""

from __future__ import annotations

RENDER_PRELUDE = """
local TERMINAL = {done=true, rejected=true, blocked=true, cancelled=true, failed=true}
local RANK = {queued=0, running=1, decoding=2, checking=3}
local WEEK_S, MONTH_S = 7 * 86400, 30 * 86400

local function keep(stream, event)
  return redis.call('XADD', stream, 'MAXLEN', '~', 2000, '*', 'e', cjson.encode(event))
end

-- One event for those who follow the render, those who follow the owner, and the web processes' tails.
local function emit(id, event)
  local key = 'fl:render:' .. id
  local at = redis.call('HMGET', key, 'owner', 'state', 'step', 'steps', 'attempt')
  event.id, event.state = id, at[2]
  event.step = event.step or tonumber(at[3])
  event.steps, event.attempt = tonumber(at[4]), tonumber(at[5])
  local feed = 'fl:feed:' .. at[1]
  local in_render, in_feed = keep('fl:events:' .. id, event), keep(feed, event)
  redis.call('EXPIRE', feed, WEEK_S)
  redis.call('XADD', 'fl:pulse', 'MAXLEN', '~', 1000, '*', 'id', id, 'owner', at[1])
  return in_render, in_feed
end

local function emit_state(id)
  local event, cause = {type='state'}, redis.call('HGET', 'fl:render:' .. id, 'error')
  if cause and cause ~= 'null' then event.error = cjson.decode(cause) end
  emit(id, event)
end

-- At most one glimpse of a render is kept: pictures would crowd out the states.
local function forget_glimpse(id)
  local key = 'fl:render:' .. id
  local at = redis.call('HMGET', key, 'owner', 'glimpse', 'glimpse_feed')
  if at[2] then redis.call('XDEL', 'fl:events:' .. id, at[2]) end
  if at[3] then redis.call('XDEL', 'fl:feed:' .. at[1], at[3]) end
end

-- Takes the render's present entry out of its stream, whoever holds it.
local function leave_stream(key)
  local at = redis.call('HMGET', key, 'stream', 'group', 'entry')
  if not at[1] then return end
  redis.call('XACK', at[1], at[2], at[3])
  redis.call('XDEL', at[1], at[3])
  redis.call('HDEL', key, 'stream', 'group', 'entry')
end

local function enter_stream(key, stream, group, id, attempt)
  local entry = redis.call('XADD', stream, '*', 'id', id, 'attempt', attempt)
  redis.call('HSET', key, 'stream', stream, 'group', group, 'entry', entry)
  redis.call('LPUSH', 'fl:wake:' .. group, '1')
  redis.call('LTRIM', 'fl:wake:' .. group, 0, 7)
end

-- In a stream that was deleted and begun again, another's entry may have the same name.
local function is_entry_of(entry, id)
  return entry[2][1] == 'id' and entry[2][2] == id
end

-- What follows every change of state: the indexes, the end's tidying, the event.
local function settle(id, state)
  local key = 'fl:render:' .. id
  if state ~= 'queued' then redis.call('ZREM', 'fl:queue', id) end
  if state == 'running' then redis.call('HSET', 'fl:stepping', id, 0) else redis.call('HDEL', 'fl:stepping', id) end
  if TERMINAL[state] then
    redis.call('HDEL', 'fl:claims', id)
    redis.call('ZREM', 'fl:open', id)
    redis.call('SREM', 'fl:open:' .. redis.call('HGET', key, 'owner'), id)
    redis.call('ZREM', 'fl:due', id)
    leave_stream(key)
    forget_glimpse(id)
    redis.call('DEL', 'fl:latents:' .. id)
    redis.call('EXPIRE', key, MONTH_S)
  end
  emit_state(id)
  if TERMINAL[state] then redis.call('EXPIRE', 'fl:events:' .. id, WEEK_S) end
end

-- The fence: the state if this attempt may still write, else nil.
local function writable(id, attempt)
  local at = redis.call('HMGET', 'fl:render:' .. id, 'state', 'attempt')
  if not at[1] or TERMINAL[at[1]] or at[2] ~= attempt then return nil end
  return at[1]
end

local function rest(from)
  return unpack(ARGV, from, #ARGV)
end
"""

FAIR_PLACE = """
-- Start-time fair queueing (Goyal, Vin and Cheng 1996): an owner's next render is due when its earlier ones have had
-- their share, so owners take turns by the work they ask for, and who comes to a busy queue is not behind all of it.
-- Returns the place of a render that the owner adds now, and the queue's time then.
local function fair_place(owner)
  local now = tonumber(redis.call('GET', 'fl:vtime') or '0') + 1e-6
  return math.max(now, tonumber(redis.call('GET', 'fl:turn:' .. owner) or '0')), now
end
"""

CREATE = (
    RENDER_PRELUDE
    + FAIR_PLACE
    + """
-- ARGV: id, owner, created_s, lane, group, idempotency key or '', body hash, its ttl, work_s, due_s or '', how many may
-- be open of all and of the owner, or '', then the record's fields
local id, owner, created_s, lane, group, idem, hash, idem_s, work_s, due_s, total, own = unpack(ARGV, 1, 12)

local function take_place()
  local place, now = fair_place(owner)
  redis.call('SET', 'fl:vtime', string.format('%.6f', now))
  redis.call('SET', 'fl:turn:' .. owner, string.format('%.6f', place + tonumber(work_s)), 'EX', 3600)
  return string.format('%.6f', place)
end

-- What the door has to know of a render; all of it is JSON already.
local function claim_of(key)
  local at = redis.call('HMGET', key, 'work_s', 'steps', 'created_s', 'deadline_s', 'predicted_gpu_s', 'rows')
  for i = 1, 6 do at[i] = at[i] or 'null' end
  return '[' .. table.concat(at, ',') .. ']'
end

-- Which bound leaves no room for one more, if any. What vanished from the open ones is not counted.
local function lacking()
  if total == '' then return nil end
  local mine = 'fl:open:' .. owner
  if redis.call('SCARD', mine) >= tonumber(own) then
    for _, known in ipairs(redis.call('SMEMBERS', mine)) do
      if not redis.call('ZSCORE', 'fl:open', known) then redis.call('SREM', mine, known) end
    end
    if redis.call('SCARD', mine) >= tonumber(own) then return 'quota' end
  end
  return redis.call('ZCARD', 'fl:open') >= tonumber(total) and 'full' or nil
end

local key = 'fl:render:' .. id
if idem ~= '' then
  local known = redis.call('HMGET', idem, 'id', 'hash')
  local earlier = known[1] and redis.call('HGETALL', 'fl:render:' .. known[1]) or {}
  if #earlier > 0 then
    return {known[2] == hash and 'known' or 'conflict', earlier}
  end
end
if redis.call('EXISTS', key) == 1 then  -- the same call again, after its answer was lost
  return {'known', redis.call('HGETALL', key)}
end
local bound = lacking()
if bound then return {bound, {}} end
redis.call('HSET', key, rest(13))
redis.call('ZADD', 'fl:renders:' .. owner, created_s, id)
if idem ~= '' then
  redis.call('HSET', idem, 'id', id, 'hash', hash)
  redis.call('EXPIRE', idem, idem_s)
end
local state = redis.call('HGET', key, 'state')
if not TERMINAL[state] then
  redis.call('ZADD', 'fl:queue', take_place(), id)
  redis.call('HSET', 'fl:claims', id, claim_of(key))
  redis.call('ZADD', 'fl:open', created_s, id)
  redis.call('SADD', 'fl:open:' .. owner, id)
  if due_s ~= '' then redis.call('ZADD', 'fl:due', due_s, id) end
  enter_stream(key, lane, group, id, 0)
end
settle(id, state)
return {'created', redis.call('HGETALL', key)}
"""
)

CLAIM = (
    RENDER_PRELUDE
    + """
-- ARGV: id, cap of attempts, state to enter
local id, cap, state = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local key = 'fl:render:' .. id
local at = redis.call('HMGET', key, 'state', 'attempt', 'error', 'last_error', 'unspent')
if not at[1] or TERMINAL[at[1]] then return {} end
local spent = tonumber(at[2]) - tonumber(at[5] or '0')  -- those that were handed back cost nothing
local last = (at[3] and at[3] ~= 'null') and at[3] or at[4] or 'null'
if spent >= cap then
  local message = 'gave up after ' .. spent .. ' attempts'
  redis.call('HSET', key, 'state', 'failed',
    'error', '{"code":"attempts","message":"' .. message .. '","last":' .. last .. '}')
  settle(id, 'failed')
  return {}
end
redis.call('HSET', key, 'state', state, 'attempt', at[2] + 1, 'error', 'null', 'last_error', last)
if state == 'running' then redis.call('HSET', key, 'step', 0, 'batch_sizes', '') end
settle(id, state)
return redis.call('HGETALL', key)
"""
)

CHANGE = (
    RENDER_PRELUDE
    + """
-- ARGV: id, attempt, state, then field pairs
local id, attempt, state = unpack(ARGV, 1, 3)
if not writable(id, attempt) then return 0 end
redis.call('HSET', 'fl:render:' .. id, 'state', state, rest(4))
settle(id, state)
return 1
"""
)

PROGRESS = (
    RENDER_PRELUDE
    + """
-- ARGV: of each render: id, attempt, step, batch size. Returns of each whether it is wanted.
local function progress(id, attempt, step, batch)
  local state = writable(id, attempt)
  if not state then return 0 end
  if state == 'running' then redis.call('HSET', 'fl:stepping', id, step) end
  local key = 'fl:render:' .. id
  local sizes = redis.call('HGET', key, 'batch_sizes')
  redis.call('HSET', key, 'step', step, 'batch_sizes', sizes == '' and batch or sizes .. ',' .. batch)
  emit(id, {type='progress', batch_size=tonumber(batch)})
  return 1
end

local wanted = {}
for i = 1, #ARGV, 4 do wanted[#wanted + 1] = progress(unpack(ARGV, i, i + 3)) end
return wanted
"""
)

GLIMPSE = (
    RENDER_PRELUDE
    + """
-- ARGV: id, attempt, step, JPEG in base64
local id, attempt, step, picture = unpack(ARGV, 1, 4)
if not writable(id, attempt) then return 0 end
forget_glimpse(id)
local in_render, in_feed = emit(id, {type='glimpse', step=tonumber(step), format='jpeg', image_b64=picture})
redis.call('HSET', 'fl:render:' .. id, 'glimpse', in_render, 'glimpse_feed', in_feed)
return 1
"""
)

CANCEL = (
    RENDER_PRELUDE
    + """
-- ARGV: id. Returns whether this call ended it, and the record.
local id = ARGV[1]
local key = 'fl:render:' .. id
local at = redis.call('HMGET', key, 'state', 'owner', 'work_s')
local ends = at[1] and not TERMINAL[at[1]]
if ends then
  if at[1] == 'queued' and redis.call('EXISTS', 'fl:turn:' .. at[2]) == 1 then  -- its owner gets the share back
    redis.call('INCRBYFLOAT', 'fl:turn:' .. at[2], -tonumber(at[3] or '0'))
  end
  redis.call('HSET', key, 'state', 'cancelled')
  settle(id, 'cancelled')
end
return {ends and 1 or 0, redis.call('HGETALL', key)}
"""
)

HAND_OVER = (
    RENDER_PRELUDE
    + """
-- ARGV: id, attempt, state, next stream, next group, payload key, payload, payload ttl, then field pairs
local id, attempt, state, stream, group, payload_key, payload, payload_s = unpack(ARGV, 1, 8)
local now = writable(id, attempt)
if not now then return 0 end
if RANK[now] >= RANK[state] then return 1 end  -- the same hand-over again: it has happened
local key = 'fl:render:' .. id
leave_stream(key)
redis.call('SET', payload_key, payload, 'EX', payload_s)
redis.call('HSET', key, 'state', state, rest(9))
enter_stream(key, stream, group, id, attempt)
settle(id, state)
return 1
"""
)

PULL = """
-- KEYS: stream. ARGV: group, consumer, count. A lost group starts again from 0.
local function read()
  return redis.pcall('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', ARGV[3], 'STREAMS', KEYS[1], '>')
end

local reply = read()
if reply and reply.err then
  if redis.call('EXISTS', KEYS[1]) == 0 then return {} end
  redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0')
  reply = read()
end
local got = {}
for _, entry in ipairs(reply and reply[1][2] or {}) do
  local fields = {}
  for f = 1, #entry[2], 2 do fields[entry[2][f]] = entry[2][f + 1] end
  local state = redis.call('HGET', 'fl:render:' .. (fields['id'] or ''), 'state')
  got[#got + 1] = {KEYS[1], entry[1], fields['id'] or '', fields['attempt'] or '', state or ''}
end
return got
"""

MODEL_OF = """
-- The model that a render was asked of; nil when its record is gone or names none.
local function model_of(id)
  local at = redis.call('HMGET', 'fl:render:' .. id, 'model', 'recipe')
  if at[1] or not at[2] then return at[1] end
  local read, recipe = pcall(cjson.decode, at[2])  -- a record of before there was the field
  return read and recipe.model_id .. '@' .. recipe.model_version
end
"""

TAKE_OVER = (
    MODEL_OF
    + """
-- KEYS: streams. ARGV: group, consumer, least idle ms, count, model or '' for any, and styles where renders of exactly
-- these are wanted alone. The rest stays for others.
local group, consumer, idle_ms, count, model, styles = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local got = {}

local function wanted(id)
  if model ~= '' and (model_of(id) or model) ~= model then return false end
  local worn = styles and redis.call('HGET', 'fl:render:' .. id, 'styles')
  return not styles or worn == styles
end

local function take(stream, entry_id)
  local entry, fields = redis.call('XRANGE', stream, entry_id, entry_id)[1], {}
  for f = 1, entry and #entry[2] or 0, 2 do fields[entry[2][f]] = entry[2][f + 1] end
  local id = fields['id'] or ''
  if not wanted(id) then return end
  local claimed = redis.call('XCLAIM', stream, group, consumer, idle_ms, entry_id)  -- forgets what was deleted
  if #claimed == 0 then return end
  local state = redis.call('HGET', 'fl:render:' .. id, 'state')
  got[#got + 1] = {stream, entry_id, id, fields['attempt'] or '', state or ''}
end

for _, stream in ipairs(KEYS) do
  local from = '-'
  while #got < count do
    local held = redis.pcall('XPENDING', stream, group, 'IDLE', idle_ms, from, '+', 64)
    if held.err or #held == 0 then break end  -- err: no stream or no group, so nothing is held
    for _, row in ipairs(held) do
      if #got < count then take(stream, row[1]) end
      from = '(' .. row[1]
    end
  end
end
return got
"""
)

HEARTBEAT = """
-- KEYS: each entry's stream. ARGV: group, consumer, then each entry's id. Returns the positions of lost entries.
-- Only what is still ours is renewed: a late twin must not take an entry back. What nobody holds, since the group was
-- deleted, is ours again.
local function hold(stream, id)
  local held = redis.pcall('XPENDING', stream, ARGV[1], id, id, 1)
  if held.err and redis.call('EXISTS', stream) == 1 then
    redis.call('XGROUP', 'CREATE', stream, ARGV[1], '0')
    held = {}
  end
  if held.err then return false end
  if #held > 0 then return held[1][2] == ARGV[2] end
  return #redis.call('XCLAIM', stream, ARGV[1], ARGV[2], 0, id, 'FORCE', 'JUSTID') > 0
end

local lost = {}
for index, stream in ipairs(KEYS) do
  local id = ARGV[2 + index]
  if not hold(stream, id) then
    lost[#lost + 1] = index
  else
    redis.call('XCLAIM', stream, ARGV[1], ARGV[2], 0, id, 'JUSTID')
  end
end
return lost
"""

ACK = """
-- KEYS: stream. ARGV: group, consumer, entry id. What another holds by now stays its own.
local held = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1, ARGV[2])
if held.err or #held == 0 then return 0 end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
redis.call('XDEL', KEYS[1], ARGV[3])
return 1
"""
