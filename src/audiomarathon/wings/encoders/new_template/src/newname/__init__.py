"""An audio encoder: a log-mel spectrogram."""
