"""A Redis that goes back to what it was a moment ago, as a replica that is promoted does."""

from __future__ import annotations

from tests.journal.redis_server import RedisServer

_COPY = """
local from, to = ARGV[1], ARGV[2]
if from ~= '' then
  for _, key in ipairs(redis.call('KEYS', 'paywitness:*')) do
    redis.call('DEL', key)
  end
end
for _, key in ipairs(redis.call('KEYS', from .. 'paywitness:*')) do
  redis.call('COPY', key, to .. string.sub(key, #from + 1), 'REPLACE')
end
return 1
"""


class Backup:
    """Every key of the journal as it stands now."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        assert server.ask("EVAL", _COPY, "0", "", "before:") == b":1\r\n"

    def restore(self) -> None:
        """What was written since is forgotten. Connections stay."""
        assert self._server.ask("EVAL", _COPY, "0", "before:", "") == b":1\r\n"

    def take_over(self) -> None:
        """The same, and it is another Redis from now on: whoever is connected has to connect again."""
        self.restore()
        self._server.ask("REPLICAOF", "127.0.0.1", "1")
        self._server.ask("REPLICAOF", "NO", "ONE")
        self._server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
