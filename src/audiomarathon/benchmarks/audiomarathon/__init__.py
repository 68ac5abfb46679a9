"""The ten tasks of the benchmark AudioMarathon, and their published scores."""
