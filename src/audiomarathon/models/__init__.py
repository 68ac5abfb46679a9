"""Model families: how to load each family's checkpoints, how its prompts look, and where in the model its parts are."""
