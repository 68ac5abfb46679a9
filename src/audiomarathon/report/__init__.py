"""Show results: tables, pictures and the HTML page."""
