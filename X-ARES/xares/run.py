"""Let `python -m xares.run` work as in X-ARES."""

from audiomarathon.cli.xares import main

if __name__ == "__main__":
    main()
