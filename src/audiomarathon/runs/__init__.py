"""Read and write run folders: records, verdicts (scores of single samples) and summaries."""
