"""Build the task `race` from RACE and a speech synthesiser. Run it without arguments to see what it needs."""

from audiomarathon.cli.segment import door

door("race")
