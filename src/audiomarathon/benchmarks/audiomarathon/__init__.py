"""The ten tasks of AudioMarathon, and what was published of them."""
