"""Probes of pooled embeddings: what a frozen audio encoder knows about a task's classes."""
