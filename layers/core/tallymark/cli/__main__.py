"""`python -m tallymark.cli`, for where the command is not installed."""

from tallymark.cli import main

main(prog_name="tallymark")
