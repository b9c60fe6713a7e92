"""A package, so that no `tests` which some other package installed is found first."""
