"""Parts of the SDK under trial."""
