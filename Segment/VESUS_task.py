"""Build the task `vesus` from VESUS. Run it without arguments to see what it needs."""

from audiomarathon.cli.segment import door

door("vesus")
