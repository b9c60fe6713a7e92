"""What a rehearsal on a Gaudi finds, and the hook that reports it in a run."""
