"""Runs shown in a tracker, such as MLflow, while they go: three hooks, and what calls them."""
