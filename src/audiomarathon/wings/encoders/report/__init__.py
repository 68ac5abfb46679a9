"""Tables and pictures of encoders and towers."""
