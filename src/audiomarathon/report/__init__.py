"""Show results of runs: tables, pictures and the HTML page."""
