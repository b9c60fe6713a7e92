"""Folders of images: classes, lists, and pictures that are broken."""

import os
import struct
import zlib

import pytest

from devrun.data import ImageFolder, LoaderSpec, PreparedLoader, build_dataloader
from devrun.errors import DataError

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def images(tmp_path):
    """Two classes: cat with 2 grey images and one deeper down, dog with 2 in colour."""
    for name in ("cat/deep", "dog"):
        (tmp_path / name).mkdir(parents=True)
    for index, name in enumerate(("cat/b.png", "cat/a.png", "cat/deep/c.PNG")):
        Image.new("L", (6, 4), 10 * index).save(tmp_path / name)
    for index, name in enumerate(("dog/x.jpg", "dog/y.png")):
        Image.new("RGB", (6, 4), (200, index, 0)).save(tmp_path / name)
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    return tmp_path


def broken(path):
    path.write_bytes(path.read_bytes()[:-30])


def batches(dataset):
    loader = build_dataloader(dataset, 5, shuffle=False)
    return PreparedLoader(LoaderSpec.of(loader, seed=0))


def test_folders_are_classes_and_files_go_by_name(images):
    dataset = ImageFolder(images)
    assert dataset.classes == ("cat", "dog")
    assert dataset.targets.tolist() == [0, 0, 0, 1, 1]
    assert dataset.paths == [
        "cat/a.png",
        "cat/b.png",
        "cat/deep/c.PNG",
        "dog/x.jpg",
        "dog/y.png",
    ]


def test_classes_may_be_chosen(images):
    assert ImageFolder(images, classes=["dog"]).targets.tolist() == [0, 0]
    with pytest.raises(DataError, match="no folder of class 'dgo'; did you mean"):
        ImageFolder(images, classes=["dgo"])


def test_a_list_names_files_and_labels(images, tmp_path):
    listed = tmp_path / "list.txt"
    listed.write_text("dog/x.jpg 3\n\ncat/a.png 0\n")
    dataset = ImageFolder(images, listed)
    assert (dataset.targets.tolist(), dataset.num_classes) == ([3, 0], 4)
    listed.write_text("dog/x.jpg dog\n")
    assert ImageFolder(images, listed, classes=["cat", "dog"]).targets.tolist() == [1]


def test_a_bad_line_of_a_list_is_named(images, tmp_path):
    listed = tmp_path / "list.txt"
    listed.write_text("cat/a.png 0\ndog/x.jpg dgo\n")
    with pytest.raises(DataError, match=r"list\.txt:2: .*did you mean 'dog'"):
        ImageFolder(images, listed, classes=["cat", "dog"])


def test_a_broken_image_is_named_with_its_sample(images):
    broken(images / "cat" / "b.png")
    with pytest.raises(DataError, match=r"cat/b\.png: .*at sample 1, epoch 1"):
        list(batches(ImageFolder(images)))


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n%%EOF\n"


def test_no_picture_is_a_program_that_is_run(images, tmp_path, monkeypatch):
    for name in ("gs", "gswin32c", "gswin64c"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/PWNED\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    (images / "cat" / "a.png").write_bytes(EPS)
    with pytest.raises(DataError, match="it is none of BMP"):
        ImageFolder(images)[0]
    assert not (tmp_path / "PWNED").exists()


def test_neither_a_bomb_nor_a_pipe_stops_without_a_reason(images):
    size = struct.pack(">II", 60_000, 60_000)
    picture = (images / "cat" / "a.png").read_bytes()
    head = picture[12:16] + size + picture[24:29]
    check = struct.pack(">I", zlib.crc32(head))
    (images / "cat" / "a.png").write_bytes(picture[:12] + head + check + picture[33:])
    os.remove(images / "cat" / "b.png")
    os.mkfifo(images / "cat" / "b.png")
    data = ImageFolder(images)
    with pytest.raises(DataError, match="exceeds limit"):
        data[0]
    with pytest.raises(DataError, match="no regular file"):
        data[1]
