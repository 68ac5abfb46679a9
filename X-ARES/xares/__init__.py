"""X-ARES' package under its original name; its modules call audiomarathon."""
