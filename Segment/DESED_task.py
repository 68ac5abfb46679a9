"""Build the task `desed` from DESED. Run it without arguments to see what it needs."""

from audiomarathon.cli.segment import door

door("desed")
