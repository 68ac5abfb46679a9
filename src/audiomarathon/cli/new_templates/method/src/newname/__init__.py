"""A method that keeps the audio tokens with the largest norm."""
