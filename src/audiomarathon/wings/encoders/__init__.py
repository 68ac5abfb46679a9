"""The wing of audio encoders: X-ARES, probes of embeddings, and the towers of audio LLMs."""
