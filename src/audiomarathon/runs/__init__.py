"""Read and write run folders: records (one per sample), verdicts (their scores) and summaries."""
