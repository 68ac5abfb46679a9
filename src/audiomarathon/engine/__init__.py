"""What turns samples into run folders: engines, the loop, identities, sweeps and plans."""
