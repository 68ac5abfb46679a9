"""Download, verify, describe and review data, and make control variants of it."""
