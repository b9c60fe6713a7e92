"""What stands behind the public names; not part of Gaudi's interface."""
