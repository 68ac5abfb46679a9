"""Costs of a model, from its modules, its config or its records: FLOPs, prefill, memory."""
