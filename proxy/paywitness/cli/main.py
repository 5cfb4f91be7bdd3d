"""`paywitness`: the group of all commands. It loads each command when it is called, so that a start is quick."""

from __future__ import annotations

from importlib import import_module

import click

_COMMANDS = ("run", "demo", "sandbox", "policy", "ops", "circuits", "ca", "redirect", "doctor", "journal")
_GROUPS = {"ops": "ops.group", "policy": "policy.group"}  # commands that are folders


class _Commands(click.Group):
    """Loads a command when it is called: a sidecar that was killed is back sooner."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        found = getattr(import_module(f"paywitness.cli.{_GROUPS.get(name, name)}"), name)
        return found if isinstance(found, click.Command) else None


_EPILOG = """
\b
First steps:
  paywitness run --with-sandbox          a sidecar, a provider to play with, a journal
  paywitness policy check policies/      a summary of your policies, and every problem in them
  paywitness doctor                      whether this installation is fit to hold money
  paywitness ops list --doubt            the payments whose outcome is unknown
  paywitness circuits                    which providers are being called, and which are not
  paywitness journal status              the sidecars that hold the journal, and its level
  paywitness ca init                     let services use HTTPS_PROXY, with no change of code
"""


@click.group(cls=_Commands, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="paywitness", prog_name="paywitness")
def main() -> None:
    """Paywitness carries payment calls to providers and knows what became of each one.

    Point a service at http://127.0.0.1:8700/{provider}/... instead of the provider. Every call is journalled before it
    is sent. A lost response is an unknown outcome, not a failure. A retry happens only if it cannot charge twice.
    """
