"""Turn samples into run folders: engines, the evaluation loop, the identities of runs, sweeps and their plans."""
