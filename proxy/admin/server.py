"""The admin port: a listener of its own, loopback by default, apart from the one that carries payments."""

from __future__ import annotations

from aiohttp import web

from proxy.admin.api import Api
from proxy.admin.door import problems, token_guard
from proxy.admin.view import View

_BODY_BYTES_MAX = 65_536  # nothing here takes a body of more than a form
_CLOSE_GRACE_S = 2.0


class AdminServer:
    """Serves a view. `token` guards all but health and metrics; without one that part stays closed."""

    def __init__(self, view: View, token: str | None) -> None:
        self._view = view
        self._token = token
        self._runner: web.AppRunner | None = None

    def application(self) -> web.Application:
        # The order is from the outside in: what the guard raises is answered as a problem too.
        middlewares = (problems, token_guard(self._token))
        application = web.Application(middlewares=middlewares, client_max_size=_BODY_BYTES_MAX)
        application.add_routes(Api(self._view).routes())
        return application

    async def start(self, host: str, port: int) -> int:
        """Listen, and say at which port: the one given, or the one that was free where 0 was given. Raises OSError."""
        runner = web.AppRunner(self.application(), access_log=None, shutdown_timeout=_CLOSE_GRACE_S)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        return int(runner.addresses[0][1])

    async def close(self) -> None:
        """Stop listening; what is being answered gets a moment to finish."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
