"""Audio encoders: X-ARES' tasks, probes (small models trained on embeddings), and the audio towers of audio LLMs."""
