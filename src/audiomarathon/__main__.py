"""`python -m audiomarathon` is the `audiomarathon` command."""

from .cli import main

main()
