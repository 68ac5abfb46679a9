"""Show runs in a tracker, such as MLflow, while they are running."""
