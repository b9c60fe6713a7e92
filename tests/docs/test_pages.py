"""Every page: links that lead somewhere, short lines, a place in the site."""

import re
import subprocess
import sys
from importlib import import_module

import pytest

from tests.docs.blocks import DOCUMENTS, ROOT, anchors, blocks, links, text_of

LONGEST = 300


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files_and_headings(document):
    here = (ROOT / document).parent
    wrong = []
    for path, anchor in links(document):
        target = (here / path).resolve() if path else ROOT / document
        if not target.is_file():
            wrong.append(path)
        elif anchor and anchor not in anchors(target.relative_to(ROOT).as_posix()):
            wrong.append(f"{path}#{anchor}")
    assert wrong == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_line_is_too_long_to_read(document):
    lines = text_of(document).splitlines()
    assert [n for n, line in enumerate(lines, 1) if len(line) > LONGEST] == []


def test_every_page_is_in_the_contents():
    listed = set()
    for index in ("docs/README.md", "docs/decisions/README.md"):
        for block in blocks(index, "{toctree}"):
            names = [line for line in block.text.splitlines() if line[:1] not in ":"]
            pages = [(ROOT / index).parent / f"{name}.md" for name in names if name]
            listed |= {page.resolve().relative_to(ROOT).as_posix() for page in pages}
    assert listed | {"docs/README.md"} == set(DOCUMENTS)


@pytest.mark.parametrize("index", ["docs/README.md", "docs/decisions/README.md"])
def test_an_index_links_to_what_it_contains(index):
    (contents,) = blocks(index, "{toctree}")
    linked = {path.removesuffix(".md") for path, _ in links(index)}
    listed = re.findall(r"^[\w./-]+$", contents.text, re.MULTILINE)
    # an example's page is reached from that of the examples
    assert {name for name in listed if "_device/" not in name} <= linked


def test_the_reference_has_every_public_name():
    import devrun

    directives = "".join(block.text for block in blocks("docs/api.md", "{eval-rst}"))
    form = r"^\.\. auto(\w+):: ([\w.]+)$((?:\n +:.*)*)"
    named = re.findall(form, directives, re.MULTILINE)
    found = {path.rpartition(".")[2] for kind, path, _ in named if kind != "module"}
    for kind, path, options in named:
        if kind == "module":
            module = import_module(path)
            public = {k: v for k, v in vars(module).items() if k[:1] != "_"}
            every = ":undoc-members:" in options
            own = (k for k, v in public.items() if every or v.__doc__)
            found |= set(getattr(module, "__all__", own))
    assert set(devrun.__all__) - {"__version__"} <= found


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    words = ["-q", "--fail-on-warning", "--keep-going", "-c", "docs"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, ".", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "docs" / "api.html").read_text()
    assert 'id="devrun.runners.EpochBasedRunner"' in page
    assert "docs/README.html" in (tmp_path / "site" / "index.html").read_text()
