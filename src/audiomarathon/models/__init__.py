"""Model families: how each one loads, how its prompt looks, and where its parts are."""
