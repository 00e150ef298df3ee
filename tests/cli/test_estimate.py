from __future__ import annotations

import json


def test_the_numbers_people_confuse_side_by_side(run, api):
    ran = run("estimate", "--patch", "96", "--batch", "2", "--gpu", "rtx-3090")
    assert ran.status == 0
    assert api.calls[0]["workload"].batch == 2
    assert api.calls[0]["gpu"] == "rtx-3090"
    for text in ("peak allocated  9.8 GiB", "10.5 GiB (10.2–10.8)", "11.2 GiB", "process total"):
        assert text in ran.out
    assert "activations" in ran.out


def test_without_a_card(run, api):
    assert "no card named" in run("estimate").out
    assert api.calls[0]["gpu"] is None


def test_a_preset_gives_patch_and_batch(run, api):
    run("estimate", "--config", "brats-segresnet")
    w = api.calls[0]["workload"]
    assert (w.patch, w.batch, w.model) == ((224, 224, 144), 1, "segresnet")


def test_json(run, api):
    document = json.loads(run("estimate", "--json").out)
    assert document["card"] is None
    assert document["workload"]["model"] == "swinunetr"
    assert document["least_memory"] == int(10.5 * 2**30)
