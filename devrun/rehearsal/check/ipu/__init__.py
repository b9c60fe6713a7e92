"""What an IPU would not compile, hold, keep busy or do again."""
