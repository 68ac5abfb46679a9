"""`python -m audiomarathon` is the `audiomarathon` command."""

from audiomarathon.cli.app import main

main()
