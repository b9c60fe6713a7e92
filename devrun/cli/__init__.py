"""The command line: one file per command; torch is imported only when needed."""
