"""Files from an attacker that MMDetection and MMPose would unpickle or evaluate."""

from __future__ import annotations

import io
import json
import os
import pickle
import sys

import numpy as np
import pytest

from devrun.errors import ConfigError
from devrun.interop.openmmlab.guard import check_section
from devrun.scopes import attach
from devrun.trust import granted

pytestmark = pytest.mark.filterwarnings("ignore")  # packages no longer maintained


class Bomb:
    def __reduce__(self):
        return open, ("PWNED", "w")


@pytest.fixture
def openimages(mmdet2, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    attach("mmdet")
    return sys.modules["mmdet.datasets.openimages"]


@pytest.fixture
def pose(mmpose0, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    attach("mmpose")
    home = "mmpose.datasets.datasets."
    return lambda name: sys.modules[home + name]


def test_a_hierarchy_of_classes_is_read_without_running_it(openimages):
    np.save("evil.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(Exception, match="not only numbers"):
        openimages.np.load("evil.npy", allow_pickle=True)
    assert not os.path.exists("PWNED")
    good = np.array([["", "a"], ["b", 1]], dtype=object)
    np.save("good.npy", good, allow_pickle=True)
    assert (openimages.np.load("good.npy", allow_pickle=True) == good).all()
    np.save("plain.npy", np.arange(3))
    assert openimages.np.load("plain.npy").tolist() == [0, 1, 2]
    with granted(everything=True):
        openimages.np.load("evil.npy", allow_pickle=True)
    assert os.path.exists("PWNED")


def test_cached_poses_are_read_without_running_them(pose):
    direct = pose("body3d.body3d_mview_direct_panoptic_dataset")
    with pytest.raises(Exception, match="not only numbers"):
        direct.pickle.load(io.BytesIO(pickle.dumps(Bomb())))
    assert not os.path.exists("PWNED")
    assert direct.pickle.load(io.BytesIO(pickle.dumps({"a": [1]}))) == {"a": [1]}


def test_annotations_in_json_import_nothing(pose, tmp_path):
    (tmp_path / "evil.py").write_text('open("PWNED", "w").close()\nclass A: pass\n')
    text = json.dumps({"__instance_type__": ["evil", "A"], "attributes": {"x": 1}})
    reader = pose("top_down.topdown_coco_dataset").json
    assert reader.load(io.StringIO(text))["attributes"] == {"x": 1}
    assert reader.loads(text)["attributes"] == {"x": 1}
    assert not os.path.exists("PWNED")
    assert json.loads(reader.dumps({"a": np.float32(0.5)})) == {"a": 0.5}


def test_lists_of_gestures_are_numbers(pose):
    gesture = pose("gesture.nvgesture_dataset")
    assert gesture.eval("17") == 17
    with pytest.raises(ValueError, match="malformed"):
        gesture.eval("open('PWNED', 'w')")
    assert not os.path.exists("PWNED")


def test_a_body_model_is_not_unpickled_for_a_config():
    section = {"type": "SMPL", "smpl_path": "evil.pkl", "joints_regressor": "x.npy"}
    with pytest.raises(ConfigError, match="smplx unpickles"):
        check_section(section, section)
