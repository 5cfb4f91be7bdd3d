"""`python -m proxy` is the `paywitness` command."""

from proxy.cli import main

main(prog_name="paywitness")
