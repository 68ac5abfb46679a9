"""X-ARES' package under its own name; the work is in audiomarathon."""
