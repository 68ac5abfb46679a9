"""Probe frozen audio encoders: fit small models on their embeddings to measure what these tell about a task."""
