"""`python -m paywitness` is the `paywitness` command."""

from paywitness.cli import main

main(prog_name="paywitness")
