"""Where code and packages that were written for other frameworks meet devrun."""
