"""Live sketches of visitors in Valkey, each step one script on one group of them.

A sketch is a set of digests, and exact, while it has no more than FEW; then it is a HyperLogLog. Its bytes are those of
the HyperLogLog, or = and the digests.

A group has a book, a hash: #era and #server say which sketches belong together and which process holds them (a
question mark: it is not looked at), #begun when the era began and #others how many before it ended early for the
server alone, #whole that all visitors are in them, #since that what was accepted before is late, #retreats how often
that moment had been moved back when it was written, #changes and #stores count, and every other field is a sketch that
is not stored yet, with the number of its last change; a question mark behind it says that its snapshot has not been
merged in. What is in no such field may vanish at any time, by expiry or eviction: it is loaded again. What is and has
vanished ends the era, as do an evicted book, an emptied server, and one that started again or was replaced, since it
may have forgotten the last moments.

A server that is full refuses what adds and loads. What stores goes on, so that there is something to evict again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tallymark.errors import Unavailable
from tallymark.model import Target
from tallymark.visitors import Added, Addition, Live, Seen, Sketch, Snapshot

from . import keys
from .valkey import ValkeyDown, ValkeyServer

GROUPS = 64
# As many as fit into a write unit. Beyond it one visitor more or less is under 1 %; of 30, it would be over 3 %.
FEW = 100
KEPT_S = 3600  # a sketch that is stored, since it was: what is viewed or read again is loaded again
_EARLY_S, _OTHERS_AT_MOST = 3600, 3
_CALLS_AT_ONCE = 200
_ALSO_IF_FULL = "#!lua flags=allow-oom\n"

_BOOK = """
local book = KEYS[1]
local function sketch(era, member) return book .. '/' .. era .. '/' .. member end
local function server() return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or '' end
local function standing()
  local known = redis.call('HMGET', book, '#era', '#server', '#whole')
  if not known[1] or known[2] ~= '?' and known[2] ~= server() then return '', false end
  return known[1], known[3] and true or false
end
local function ended() redis.call('HDEL', book, '#server', '#whole') end
local function is_unsure(change) return change and string.sub(change, -1) == '?' end
local function kind(key) return redis.call('TYPE', key).ok end
local function digests_in(packed, first)
  local digests = {}
  for i = first, #packed, 8 do digests[#digests + 1] = string.sub(packed, i, i + 7) end
  return digests
end
local function members(sets) -- a set also has an empty member, so that it can be there with nobody in it
  local found = {}
  for _, digest in ipairs(redis.call('SUNION', unpack(sets))) do
    if digest ~= '' then found[#found + 1] = digest end
  end
  return found
end
local function estimated(key) -- a set becomes a HyperLogLog
  if kind(key) == 'string' then return end
  local found = members({key})
  redis.call('DEL', key)
  redis.call('PFADD', key, unpack(found))
end
local function add(key, digests)
  if kind(key) == 'string' then return redis.call('PFADD', key, unpack(digests)) == 1 end
  local more = redis.call('SADD', key, '', unpack(digests))
  if redis.call('SCARD', key) > few + 1 then estimated(key) end
  return more > 0
end
local function merge(key, stored)
  if string.sub(stored, 1, 1) == '=' then add(key, digests_in(stored, 2)) return end
  estimated(key)
  redis.call('SET', book .. '/stored', stored)
  redis.call('PFMERGE', key, book .. '/stored')
  redis.call('DEL', book .. '/stored')
end
local function bytes(key)
  if kind(key) == 'string' then return redis.call('GET', key) end
  return '=' .. table.concat(members({key}))
end
local function count(all)
  local sets, estimates = {}, {}
  for _, key in ipairs(all) do
    local some = kind(key) == 'string' and estimates or sets
    some[#some + 1] = key
  end
  if #estimates == 0 then return #members(sets) end
  if #sets > 0 then
    estimates[#estimates + 1] = book .. '/few'
    redis.call('DEL', book .. '/few')
    redis.call('PFADD', book .. '/few', unpack(members(sets)))
  end
  return redis.call('PFCOUNT', unpack(estimates))
end
"""
_IS_WHOLE = """
local _, whole = standing()
return whole and 1 or 0
"""
# Era, how many seconds are early, how often is too often. Ends the era before; its unstored sketches, which nobody
# will store, make room.
_BEGIN = """
local now_s = redis.call('TIME')[1]
local era, named, begun_s, others = unpack(redis.call('HMGET', book, '#era', '#server', '#begun', '#others'))
local is_other = era and named and named ~= '?' and named ~= server() and now_s - begun_s < tonumber(ARGV[2])
others = is_other and others + 1 or 0
local is_doubted = others >= tonumber(ARGV[3])
for _, member in ipairs(redis.call('HKEYS', book)) do
  if string.sub(member, 1, 1) ~= '#' then redis.call('UNLINK', sketch(era, member)) end
end
redis.call('DEL', book)
redis.call('HSET', book, '#era', ARGV[1], '#server', is_doubted and '?' or server())
redis.call('HSET', book, '#begun', now_s, '#others', others)
return is_doubted and 1 or 0
"""
# Era, and what is late. One that another process has finished before stays as it is.
_FINISH = """
local era, whole = standing()
if era ~= ARGV[1] or whole then return 0 end
redis.call('HSET', book, '#whole', 1, '#since', ARGV[2], '#retreats', ARGV[3])
return 1
"""
_FORGET = "ended()"
_LATE_BEFORE = """
local era, whole = standing()
if not whole or tonumber(redis.call('HGET', book, '#retreats')) > tonumber(ARGV[2]) then return '' end
redis.call('HSET', book, '#retreats', ARGV[2])
local since = redis.call('HGET', book, '#since')
if tonumber(since) < tonumber(ARGV[1]) then redis.call('HSET', book, '#since', ARGV[1]) end
return era
"""
# Not after a turn that knows of this retreat: it has moved on from there.
_RETREAT = """
local era, whole = standing()
if not whole or tonumber(redis.call('HGET', book, '#retreats')) >= tonumber(ARGV[2]) then return 0 end
redis.call('HSET', book, '#retreats', ARGV[2])
local since = redis.call('HGET', book, '#since')
if tonumber(since) > tonumber(ARGV[1]) then redis.call('HSET', book, '#since', ARGV[1]) end
return 1
"""
# A rebuild's era (else empty), when the first was accepted, digests, the members.
_ADD = """
local era, whole = standing()
if ARGV[1] ~= '' then whole = era == ARGV[1] end
if not whole then return '' end
if ARGV[1] == '' and tonumber(ARGV[2]) < tonumber(redis.call('HGET', book, '#since')) then return 'late' end
local digests = digests_in(ARGV[3], 1)
for i = 4, #ARGV do
  local key, change = sketch(era, ARGV[i]), redis.call('HGET', book, ARGV[i])
  local exists = redis.call('EXISTS', key) == 1
  if change and not exists then ended() return '' end
  if add(key, digests) then
    local number = redis.call('HINCRBY', book, '#changes', 1)
    local mark = (not exists or is_unsure(change)) and '?' or ''
    redis.call('HSET', book, ARGV[i], number .. mark)
    redis.call('PERSIST', key)
  end
end
return era
"""
_UNSTORED = """
if standing() ~= ARGV[1] then return {} end
return redis.call('HKEYS', book)
"""
# Era, member, snapshot (empty: none). What is in the book is merged with its snapshot and answered.
_MERGE = """
local era = standing()
if era ~= ARGV[1] then return {'ended'} end
local key, change = sketch(era, ARGV[2]), redis.call('HGET', book, ARGV[2])
if not change then return {'stored'} end
if redis.call('EXISTS', key) == 0 then ended() return {'ended'} end
if ARGV[3] ~= '' then merge(key, ARGV[3]) end
return {'live', string.gsub(change, '%?', ''), bytes(key)}
"""
# Era, member, number of the change that is stored, seconds to keep it.
_STORED = """
local era = standing()
if era ~= ARGV[1] then return 0 end
redis.call('HINCRBY', book, '#stores', 1)
local change = redis.call('HGET', book, ARGV[2])
if not change then return 0 end
local number = string.gsub(change, '%?', '')
if number == ARGV[3] then
  redis.call('HDEL', book, ARGV[2])
  redis.call('EXPIRE', sketch(era, ARGV[2]), ARGV[4])
else
  redis.call('HSET', book, ARGV[2], number)
end
return 1
"""
_COUNT = """
local era, whole = standing()
if not whole then return {'unknown'} end
local all, missing, live = {}, {}, 0
for i = 1, #ARGV do
  local change = redis.call('HGET', book, ARGV[i])
  all[i] = sketch(era, ARGV[i])
  local exists = redis.call('EXISTS', all[i]) == 1
  if change or exists then live = 1 end
  if not exists or is_unsure(change) then missing[#missing + 1] = i - 1 end
end
if #missing == 0 then return {'count', count(all)} end
return {'load', era, redis.call('HGET', book, '#stores') or '0', live, unpack(missing)}
"""
# Era, stores so far, seconds to keep it, then member and snapshot (empty: none) in turns.
_LOAD = """
local era, whole = standing()
if not whole or era ~= ARGV[1] or (redis.call('HGET', book, '#stores') or '0') ~= ARGV[2] then return 0 end
for i = 4, #ARGV, 2 do
  local key, change = sketch(era, ARGV[i]), redis.call('HGET', book, ARGV[i])
  if change and redis.call('EXISTS', key) == 0 then ended() return 0 end
  add(key, {})
  if ARGV[i + 1] ~= '' then merge(key, ARGV[i + 1]) end
  if change then
    local number = string.gsub(change, '%?', '')
    redis.call('HSET', book, ARGV[i], number)
  else
    redis.call('EXPIRE', key, ARGV[3])
  end
end
return 1
"""


class ValkeySketches:
    """Sketches in Valkey. Every call raises Unavailable while it does not answer, and may be repeated."""

    def __init__(self, server: ValkeyServer, namespace: str) -> None:
        """The server has to answer bytes."""
        self._server, self._namespace = server, namespace

    def group_of(self, target: Target) -> int:
        return keys.sketch_group(target, GROUPS)

    # --- eras ---

    def missing(self) -> list[int]:
        """The groups that are not whole."""
        answers = self._run(_IS_WHOLE, [(group, ()) for group in range(GROUPS)])
        return [group for group, is_whole in enumerate(answers) if not is_whole]

    def begin(self, groups: Sequence[int], era: str) -> bool:
        """Each begins the era empty; until it is finished, only what names the era is added.

        True if too many eras in a row ended early because the server seemed to be another, and for no other reason:
        the new one no longer looks at that, since each rebuild is a scan.
        """
        calls = [(group, (era, _EARLY_S, _OTHERS_AT_MOST)) for group in groups]
        return any(self._run(_BEGIN, calls, frees=True))

    def finish(self, groups: Sequence[int], era: str, since_ms: int, retreats: int) -> None:
        """Those that are still in the era are whole; what was accepted before is late."""
        self._run(_FINISH, [(group, (era, since_ms, retreats)) for group in groups], frees=True)

    def forget(self) -> None:
        """Ends every era."""
        self._run(_FORGET, [(group, ()) for group in range(GROUPS)])

    def late_before(self, since_ms: int, retreats: int) -> list[str | None]:
        """What was accepted before is late from now on. Per group its era; None if it is not whole, or retreated."""
        answers = self._run(_LATE_BEFORE, [(group, (since_ms, retreats)) for group in range(GROUPS)], frees=True)
        return [era.decode() or None for era in answers]

    def retreat(self, since_ms: int, retreats: int) -> None:
        """What was accepted at that moment or later is not late, unless a turn that knows of it says so."""
        self._run(_RETREAT, [(group, (since_ms, retreats)) for group in range(GROUPS)])

    # --- adding and storing ---

    def add(self, additions: Sequence[Addition], *, era: str | None = None) -> list[Added]:
        """Per addition the era that took it. `era` is that of a rebuild, for which nothing is late."""
        calls = [
            (
                self.group_of(one.target),
                (
                    era or "",
                    one.first_ms,
                    b"".join(one.visitors),
                    *(_member(sketch) for sketch in one.sketches),
                ),
            )
            for one in additions
        ]
        return [_added(answer) for answer in self._run(_ADD, calls)]

    def unstored(self, eras: Mapping[int, str]) -> dict[Sketch, str]:
        """Of groups by era every sketch, with its era, that is not stored as it is; none if the era has ended."""
        found: dict[Sketch, str] = {}
        answers = self._run(_UNSTORED, [(group, (era,)) for group, era in eras.items()])
        for era, members in zip(eras.values(), answers, strict=True):
            for member in members:
                if not member.startswith(b"#"):
                    found[Sketch(*keys.parse_sketch_member(member.decode()))] = era
        return found

    def merge(self, sketches: Mapping[Sketch, str], stored: Mapping[Sketch, Snapshot]) -> dict[Sketch, Live] | None:
        """Those that are not stored as they are, after their snapshots were merged in; None if an era has ended."""
        calls = [
            (
                self.group_of(sketch.target),
                (era, _member(sketch), stored[sketch].data if sketch in stored else b""),
            )
            for sketch, era in sketches.items()
        ]
        live: dict[Sketch, Live] = {}
        for sketch, (state, *answer) in zip(sketches, self._run(_MERGE, calls, frees=True), strict=True):
            if state == b"ended":
                return None
            if state == b"live":
                mark, data = answer
                live[sketch] = Live(mark.decode(), data)
        return live

    def stored(self, marks: Mapping[Sketch, tuple[str, str]]) -> None:
        """Takes sketches out of the book that have not changed since (their era, the mark that merge gave)."""
        calls = [
            (self.group_of(sketch.target), (era, _member(sketch), mark, KEPT_S))
            for sketch, (era, mark) in marks.items()
        ]
        self._run(_STORED, calls, frees=True)

    # --- reading ---

    def count(self, target: Target, labels: Sequence[str]) -> Seen:
        """The union of the target's sketches."""
        members = [keys.sketch_member(target, label) for label in labels]
        ((state, *answer),) = self._run(_COUNT, [(self.group_of(target), members)])
        if state == b"count":
            return Seen(count=answer[0])
        if state == b"load":
            era, stores, live, *missing = answer
            names = tuple(labels[i] for i in missing)
            return Seen(missing=names, is_nobody_live=not live, era=era.decode(), stores=stores.decode())
        return Seen()

    def load(self, target: Target, seen: Seen, stored: Mapping[str, bytes]) -> None:
        """Merges in the snapshots of what was missing, unless one more was stored since it was seen to be."""
        pairs = [part for name in seen.missing for part in (keys.sketch_member(target, name), stored.get(name, b""))]
        self._run(_LOAD, [(self.group_of(target), (seen.era, seen.stores, KEPT_S, *pairs))])

    def _run(self, script: str, calls: Sequence[tuple[int, Sequence[Any]]], *, frees: bool = False) -> list[Any]:
        """`frees` runs it also on a server whose memory is full."""
        on_books = [(keys.cache_book_key(self._namespace, group), arguments) for group, arguments in calls]
        answers: list[Any] = []
        try:
            for first in range(0, len(on_books), _CALLS_AT_ONCE):
                some = on_books[first : first + _CALLS_AT_ONCE]
                answers += self._server.run(f"{_ALSO_IF_FULL if frees else ''}local few = {FEW}\n{_BOOK}{script}", some)
        except ValkeyDown as error:
            raise Unavailable("the cache does not answer; try again") from error
        return answers


def _member(sketch: Sketch) -> str:
    return keys.sketch_member(sketch.target, sketch.label)


def _added(answer: bytes) -> Added:
    return Added(None, late=True) if answer == b"late" else Added(answer.decode() or None)
