"""The command line: one small file a command, no logic. `paywitness --help` is where a newcomer starts."""

from __future__ import annotations

import click

from proxy.cli.ca import ca
from proxy.cli.circuits import circuits
from proxy.cli.demo import demo
from proxy.cli.doctor import doctor
from proxy.cli.ops import ops
from proxy.cli.policy import policy
from proxy.cli.redirect import redirect
from proxy.cli.run import run
from proxy.cli.sandbox import sandbox

_EPILOG = """
\b
First steps:
  paywitness run --with-sandbox          a proxy, a provider to play with, a journal
  paywitness policy check policies/      what your policies say, and what is wrong with them
  paywitness doctor                      whether all this is fit to hold money
  paywitness ops list --doubt            what became of the money, as far as anybody knows
  paywitness circuits                    which providers are being called, and which are not
  paywitness ca init                     let services come by HTTPS_PROXY, with no change of code
"""


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="paywitness", prog_name="paywitness")
def main() -> None:
    """Paywitness carries payment calls to providers and knows what became of each one.

    Point a service at http://127.0.0.1:8700/{provider}/... instead of the provider. Every call is journalled before it
    is sent; a lost response is an unknown outcome, not a failure; a retry happens only where it cannot charge twice.
    """


for command in (run, demo, sandbox, policy, ops, circuits, ca, redirect, doctor):
    main.add_command(command)
