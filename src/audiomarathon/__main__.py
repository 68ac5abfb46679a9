"""`python -m audiomarathon` is the `audiomarathon` command."""

from audiomarathon.cli import main

main()
