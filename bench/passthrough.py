"""The baseline: a pass-through on aiohttp's low-level server and its client, under uvloop, and nothing else.

It reads a call, sends it on and hands back the answer. It keeps no record, knows no key, bounds nothing and guesses
nothing: whatever Paywitness costs beyond this is the price of what it promises.
"""

from __future__ import annotations

import asyncio
import ssl
import sys

import aiohttp
import uvloop
from aiohttp import web

_NOT_PASSED_ON = {"host", "connection", "keep-alive", "content-length", "transfer-encoding"}


async def serve(port: int, upstream: str, roots: str = "") -> None:
    trusted = ssl.create_default_context(cafile=roots) if roots else True
    connector = aiohttp.TCPConnector(limit=0, ssl=trusted)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

        async def pass_on(request: web.BaseRequest) -> web.StreamResponse:
            headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _NOT_PASSED_ON]
            body = await request.read()
            address = upstream + request.path_qs
            async with session.request(
                request.method, address, headers=headers, data=body, allow_redirects=False
            ) as answer:
                kept = [(name, value) for name, value in answer.headers.items() if name.lower() not in _NOT_PASSED_ON]
                passed = web.Response(status=answer.status, body=await answer.read())
                passed.headers.extend(kept)
                return passed

        server = web.Server(pass_on, access_log=None)
        listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", port, backlog=1024)
        await listener.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), *sys.argv[2:4]))
