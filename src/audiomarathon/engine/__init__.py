"""Turn samples into run folders: engines, the evaluation loop, identities of runs, sweeps and their plans."""
