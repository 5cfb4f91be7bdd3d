"""`paywitness sandbox`: the fault-injecting provider on its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal

import click

from paywitness.core.errors import PaywitnessError
from paywitness.option_defaults import SANDBOX, read_address
from paywitness_sandbox.server import Sandbox, SandboxOptions


@click.command(context_settings={"show_default": True})
@click.option("--listen", default=str(SANDBOX), envvar="PAYWITNESS_SANDBOX", help="The provider's address.")
@click.option(
    "--contract",
    default="replayed",
    type=click.Choice(["replayed", "reexecuted", "not_stored", "none"]),
    help="Which responses it stores under an idempotency key.",
)
@click.option("--seed", default=1, help="Decides every fault of a schedule.")
def sandbox(listen: str, contract: str, seed: int) -> None:
    """Start a payment provider that breaks on request, and keeps a ledger of every effect.

    \b
      curl -s http://127.0.0.1:8702/_sandbox/           its routes and faults
      curl -s http://127.0.0.1:8702/_sandbox/ledger     every effect
    """
    try:
        address = read_address(listen, "--listen")
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_serve(address.host, address.port, contract, seed))
    except PaywitnessError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"cannot listen on {listen}: {error.strerror or error}") from None


async def _serve(host: str, port: int, contract: str, seed: int) -> None:
    provider = Sandbox(SandboxOptions(contract=contract, seed=seed))
    await provider.start(host=host, port=port)
    click.echo(f"The sandbox provider listens on {provider.url} (contract: {contract}). Ctrl-C stops it.", err=True)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await provider.stop()
