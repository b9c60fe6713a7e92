"""Generation on IPUs: the tokens of the host, in as few graphs as there are shapes."""

from tests.ipu.harness import ipu
from tests.support.generation import generated, gpt, plain


def test_an_ipu_compiles_a_graph_for_each_bucket_and_one_more(emulation):
    assert generated(gpt(), ipu(), rows=1) == plain(gpt())
    assert emulation.counts["compile"] == 3  # prompts of up to 16 and 32, and decoding
