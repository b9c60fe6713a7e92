"""What the learning-rate and the momentum hooks share."""
