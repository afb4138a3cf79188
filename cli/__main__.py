"""`python -m cli` is `orchestrate`."""

from cli.main import main

main()
