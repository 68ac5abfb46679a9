"""Probe frozen audio encoders: fit small models ("probes") on their embeddings, to measure what these contain."""
