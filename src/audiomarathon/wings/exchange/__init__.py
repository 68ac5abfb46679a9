"""Import the results of other evaluation suites (lmms-eval, Inspect) as runs, and export our runs for them."""
