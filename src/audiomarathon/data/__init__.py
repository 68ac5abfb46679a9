"""Download, verify, describe and review the tasks' data, and make control variants of it."""
