"""Model families: how each family's checkpoints are loaded, how its prompts look, and where its parts are."""
