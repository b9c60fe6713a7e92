"""What hypothesis makes the tests' damaged and hostile inputs of."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st


def examples(count, steps=50):
    """So many, the same ones each time; none is too slow on a busy machine."""
    return settings(
        max_examples=count,
        stateful_step_count=steps,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def json_of(leaves, keys):
    """Values of JSON, nested, from these leaves and keys."""
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4)
        ),
        max_leaves=12,
    )


_NUMBERS = st.integers() | st.sampled_from([-1, 0, 1 << 31, 1 << 63, 1 << 64, 10**400])
JSON = json_of(
    st.none()
    | st.booleans()
    | _NUMBERS
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    st.text(max_size=8),
)


@st.composite
def damaged(draw, texts, pieces):
    """One of `texts` with parts of it replaced, doubled, or gone."""
    text = draw(st.sampled_from(texts))
    new = st.sampled_from(pieces) | st.text(max_size=3) | st.just("")
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.integers(0, 30)))
        times = draw(st.integers(0, 3))
        text = text[:at] + draw(new) + text[at:end] * times + text[end:]
    return text


@st.composite
def damaged_bytes(draw, whole):
    """`whole` with some bytes set, a part gone, or random bytes in its place."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = at + draw(st.sampled_from([0, 1, 8, len(data)]))
        data[at:end] = draw(st.binary(max_size=9))
    return bytes(data)
