"""Scorers: they turn stored replies into verdicts and scores. They never call the model that wrote the replies."""
