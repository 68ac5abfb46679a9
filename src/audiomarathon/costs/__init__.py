"""Costs of a model: FLOPs, prefill and memory, computed from its modules, its config or a run's records."""
