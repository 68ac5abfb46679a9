"""Check, on this machine and with these weights, that model, methods and timing do what this package says."""
