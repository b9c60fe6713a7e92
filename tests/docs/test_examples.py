"""Every example of the documents runs as it stands."""

import inspect
import json
import shlex
import sys

import pytest

from devrun.cli.main import COMMANDS, main, parser_of
from devrun.config import Config, check_config
from tests.docs.blocks import ROOT, all_blocks, blocks, text_of


@pytest.mark.parametrize("block", all_blocks("python"), ids=str)
def test_a_python_example_runs(block):
    code = compile(block.text, str(block), "exec")
    exec(code, {"__name__": f"example_{block.line}"})  # noqa: S102 - the examples of our own documents


@pytest.mark.parametrize("block", all_blocks("yaml"), ids=str)
def test_a_yaml_example_has_only_known_keys(block):
    cfg = Config.fromstring(block.text, ".yaml", import_custom_modules=False)
    check_config(cfg)
    assert len(cfg) > 0


def test_the_whole_config_of_the_readme_trains(tmp_path, capsys):
    pytest.importorskip("sklearn")
    (whole,) = [b for b in blocks("README.md", "yaml") if "runner:" in b.text]
    (tmp_path / "whole.yaml").write_text(whole.text)
    assert main(["train", "whole.yaml", "--dry-run", "--device", "cpu"]) == 0
    assert "nothing was written" in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["whole.yaml"]


def test_the_hook_of_the_page_logs_in_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    pytest.importorskip("sklearn")
    page = "docs/hooks.md"
    (hook,) = [b for b in blocks(page, "python") if "WeightNormHook" in b.text]
    (use,) = [b for b in blocks(page, "yaml") if "WeightNormHook" in b.text]
    (whole,) = [b for b in blocks("README.md", "yaml") if "runner:" in b.text]
    (tmp_path / "my_hooks.py").write_text(hook.text)
    (tmp_path / "run.yaml").write_text(whole.text + use.text)
    words = "train run.yaml --device cpu --cfg-options runner.max_epochs=1"
    words += " --import my_hooks"
    assert main(words.split()) == 0
    (log,) = tmp_path.glob("work_dirs/run/*.log.json")
    assert '"weight_norm"' in log.read_text()


def test_the_own_model_of_the_readme_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    pytest.importorskip("sklearn")
    (model,) = [b for b in blocks("README.md", "python") if "TwoLayers" in b.text]
    (whole,) = blocks("README.md", "yaml")
    assert "`model: {type: TwoLayers, hidden: 64}`" in text_of("README.md")
    (tmp_path / "my_model.py").write_text(model.text)
    line = next(line for line in whole.text.splitlines() if line.startswith("model:"))
    own = whole.text.replace(line, "model: {type: TwoLayers, hidden: 64}")
    (tmp_path / "run.yaml").write_text(own)
    assert main("train run.yaml --device cpu --import my_model".split()) == 0
    facts = json.loads((tmp_path / "work_dirs" / "run" / "run.json").read_text())
    assert facts["best"]["score"] > 0.5  # of ten digits a guess is right in 0.1


def test_the_own_parts_train_together(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    page = "docs/own-parts.md"
    names = []
    for block in [*blocks(page, "python"), *blocks(page, "yaml")]:
        name = block.text.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(block.text)
        names += ["--import", name.removesuffix(".py")] * name.endswith(".py")
    (command,) = (b.text for b in blocks(page, "text") if "devrun train" in b.text)
    assert command.replace("\\\n", " ").split() == [
        "devrun",
        "train",
        "own.yaml",
        *names,
    ]
    assert main(["train", "own.yaml", "--device", "cpu", *names]) == 0
    facts = json.loads((tmp_path / "work_dirs" / "own" / "run.json").read_text())
    assert facts["best"]["score"] == 1.0
    assert {"confidence", "accuracy", "loss"} <= facts["metrics"].keys()
    (log,) = tmp_path.glob("work_dirs/own/*.log.json")
    assert '"bias_norm"' in log.read_text()


def command_lines():
    for block in all_blocks("bash"):
        for number, line in enumerate(block.text.splitlines()):
            yield pytest.param(line, id=f"{block.document}:{block.line + number}")


@pytest.mark.parametrize("line", list(command_lines()))
def test_a_command_of_the_documents_is_one_that_exists(line):
    words = shlex.split(line)
    if words[:2] == ["pip", "install"]:  # of the folder that the page is in
        words = words[words.index("&&") + 1 :]
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text()
        assert f"\n{words[1]}:" in makefile
        for name, _, value in (word.partition("=") for word in words[2:]):
            assert f"$({name})" in makefile
            assert name != "CONFIG" or (ROOT / value).is_file()
        return
    if words[0] == "torchrun":
        words = words[words.index("tools/train.py") :]
    if words[0] == "tools/train.py":
        words = ["devrun", "train", *words[1:]]
    assert words[0] == "devrun" and words[1] in COMMANDS
    args = parser_of(words[1]).parse_args(words[2:])
    if words[1] == "train":
        shipped = ROOT / "configs" / args.config
        path = shipped if shipped.is_file() else ROOT / args.config
        assert path.is_file()
        cfg = Config.fromfile(path, import_custom_modules=False)
        cfg.merge_from_dict(args.cfg_options or {})
        check_config(cfg)


def test_the_library_example_is_short():
    page = "docs/tutorial.md"
    (example,) = [b for b in blocks(page, "python") if "runner.run(" in b.text]
    lines = [line for line in example.text.splitlines() if line.strip()]
    assert len(lines) <= 24


def test_a_register_of_the_toml_example_names_the_group():
    from devrun.devices.resolve import ENTRY_POINT_GROUP

    (block,) = blocks("docs/devices.md", "toml")
    assert f'[project.entry-points."{ENTRY_POINT_GROUP}"]' in block.text
    assert inspect.cleandoc(block.text).count("=") == 1
