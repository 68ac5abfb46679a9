"""AudioMarathon: how well audio LLMs understand long audio, and what dropping audio tokens or KV cache costs and buys."""

__version__ = "0.1.0"
