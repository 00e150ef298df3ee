"""Files from anywhere."""

from __future__ import annotations

import os

import pytest

from segplan import files
from segplan.errors import RequestError
from segplan.files import read_regular

HINT = "give a report"


def refused(path, most=2**20):
    with pytest.raises(RequestError) as error:
        read_regular(path, most, too_large="that is no report", hint=HINT)
    return str(error.value)


def test_a_file_up_to_the_limit(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"x" * 2**20)
    assert len(read_regular(path, 2**20, too_large="that is no report")) == 2**20
    path.write_bytes(b"x" * (2**20 + 1))
    assert refused(path) == f"{path} is larger than 1 MiB: that is no report."


@pytest.mark.parametrize("name", ["", "  "])
def test_no_name_is_not_the_folder_here(name):
    assert refused(name) == f"the name of a file is empty: {HINT}."


def test_what_is_no_file(tmp_path):
    assert refused(tmp_path) == f"{tmp_path} is no regular file: {HINT}."
    assert "No such file" in refused(tmp_path / "nowhere")
    with pytest.raises(RequestError, match=r"is no regular file\.$"):
        read_regular(tmp_path, 1, too_large=files.__name__)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "is no regular file" in refused(tmp_path / "pipe")
