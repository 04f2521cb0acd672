"""The entry point: it is quiet from its first line on."""

from __future__ import annotations

import sys

import pytest

from regard.__main__ import main


class Interrupted:
    """Ctrl-C while the command line is imported."""

    def find_spec(self, name, path=None, target=None):
        if name == "regard.cli.main":
            raise KeyboardInterrupt


def test_ctrl_c_is_130_also_while_the_command_is_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "regard.cli.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
