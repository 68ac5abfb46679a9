"""Save whole attention maps, called like the original's script: python visualization.py --prompt S (see --help)."""

from audiomarathon.cli.attention import door

door()
