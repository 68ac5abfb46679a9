"""The ten tasks of AudioMarathon, and their published scores."""
