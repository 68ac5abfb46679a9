"""What a model costs, told from its parts, its config or its records: FLOPs, prefill, memory."""
