"""What aiohttp is told of an answer that we wrote ourselves: only whether the connection goes on."""

from __future__ import annotations

from aiohttp import web


class Written(web.StreamResponse):
    """What aiohttp is given for an answer that has been written already: whether to go on."""

    def __init__(self, *, goes_on: bool) -> None:
        super().__init__()
        self._goes_on = goes_on

    @property
    def keep_alive(self) -> bool:
        return self._goes_on

    async def prepare(self, request: web.BaseRequest) -> None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None


GOES_ON = Written(goes_on=True)
IS_OVER = Written(goes_on=False)
