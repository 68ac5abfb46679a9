"""Check, on this machine and these weights, that model, methods and timing do what they claim."""
