"""Let `python -m xares.run` work as in X-ARES."""

from audiomarathon.wings.encoders.xares_commands import main

if __name__ == "__main__":
    main()
