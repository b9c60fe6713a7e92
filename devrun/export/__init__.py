"""`devrun export` of whole models: programs that another system runs without devrun."""
