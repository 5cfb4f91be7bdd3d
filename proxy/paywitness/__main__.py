"""`python -m paywitness` is the `paywitness` command."""

from paywitness.cli.main import main

main(prog_name="paywitness")
