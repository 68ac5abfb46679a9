"""Judge replies to JASCO, called like the original's script: python eval.py JUDGE INPUT.csv OUTPUT.csv (see --help)."""

from audiomarathon.wings.jasco.commands import door

door()
