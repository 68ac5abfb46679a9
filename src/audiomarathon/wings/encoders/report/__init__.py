"""Tables and pictures of encoders and of the audio towers of audio LLMs."""
