"""Run folders: records, verdicts and summaries on disk."""
