"""Draw and print results: tables, pictures and the HTML page."""
