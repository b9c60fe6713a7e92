"""Intel Gaudi, through `habana_frameworks` or its emulator."""
