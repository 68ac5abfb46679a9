"""Import the results of other suites as runs, and export our runs for them."""
