"""Let `python -m xares.run` work as in X-ARES."""

from audiomarathon.cli.command import run_script
from audiomarathon.wings.encoders.xares_commands import run

if __name__ == "__main__":
    run_script(run, name="python -m xares.run")
