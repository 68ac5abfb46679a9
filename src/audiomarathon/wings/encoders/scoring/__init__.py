"""What verdicts on probes count."""
