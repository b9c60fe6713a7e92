"""What Python 3.9 lacks and the tests use."""


def zip_strict(*columns):
    """`zip(strict=True)` of Python 3.10, of columns that have an end."""
    rows = [list(column) for column in columns]
    lengths = sorted(map(len, rows))
    assert lengths[0] == lengths[-1], lengths
    return zip(*rows)
