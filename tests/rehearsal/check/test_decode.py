"""`devrun check` names what would break the graph of a generation."""

from __future__ import annotations

import json

import pytest
import yaml

from devrun.cli.main import main
from tests.rehearsal.check.test_clean import GPT, of_tokens

PLANTED = """
from devrun import MODELS
from devrun.models import GPT


@MODELS.register_module(force=True)
class Waits(GPT):
    def forward(self, input_ids, labels=None, past_key_values=None):
        if past_key_values is not None:
            past_key_values.positions.max().item()  # FAULT
        return super().forward(input_ids, labels, past_key_values)
"""


@pytest.mark.slow
@pytest.mark.parametrize("device", ["hpu", "ipu"])
def test_a_decode_that_waits_for_the_device_is_named(
    tmp_path, monkeypatch, capsys, device
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planted.py").write_text(PLANTED)
    config = of_tokens({**GPT, "type": "Waits", "dropout": 0.0})
    generate = {"max_new_tokens": 2, "prompt_tokens": 4}
    config["evaluation"] = {"interval": 10, "generate": generate}
    (tmp_path / "gpt.yaml").write_text(yaml.safe_dump(config))
    words = ["check", "gpt.yaml", "--import", "planted", "--device", device, "--json"]
    assert main(words) == 11
    (found,) = json.loads(capsys.readouterr().out)["devices"]
    sites = [one["site"] for one in found["findings"] if one["severity"] == "breaks"]
    (line,) = (n for n, text in enumerate(PLANTED.splitlines(), 1) if "FAULT" in text)
    assert str(tmp_path / f"planted.py:{line}") in sites
