"""Save whole attention maps, called like the original's script: python visualization.py --prompt S (see --help)."""

from audiomarathon.wings.attention.commands import door

door()
