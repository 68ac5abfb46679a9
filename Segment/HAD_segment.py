"""Build the task `had` from HAD (half-truth audio detection). Run it without arguments to see what it needs."""

from audiomarathon.cli.segment import door

door("had")
