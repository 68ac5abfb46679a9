"""What stored replies are worth: scorers, which never see the model under test."""
