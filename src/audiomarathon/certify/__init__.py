"""Check, on this machine and with these weights, that model, methods and timing are as claimed."""
