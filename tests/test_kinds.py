"""Implementations are found by the names of their modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_ocidist import kinds, launchers
from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.connection_fields import known_fields
from airflow_provider_ocidist.job import BackendOptions
from airflow_provider_ocidist.job_file.dialects.base import Dialect
from airflow_provider_ocidist.launchers.base import Launcher


def test_modules_that_declare_nothing_are_shared_by_the_kinds():
    assert {"base", "command_line", "ssh"}.isdisjoint(kinds.names("launchers"))
    assert {"base", "bundle", "kubernetes"}.isdisjoint(kinds.names("backends"))
    assert "torchrun" in kinds.names("launchers")


def test_a_module_is_a_kind_when_it_declares_one_and_is_not_imported_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "declares.py").write_text("raise AssertionError\nLAUNCHER = Declares()\n")
    (tmp_path / "shares.py").write_text("# LAUNCHER = what others end in\n")
    monkeypatch.setattr(launchers, "__path__", [*launchers.__path__, str(tmp_path)])
    kinds._declared.cache_clear()
    try:
        assert "declares" in kinds.names("launchers")
        assert "shares" not in kinds.names("launchers")
    finally:
        kinds._declared.cache_clear()


@pytest.mark.parametrize("kind", kinds.names("backends"))
def test_every_backend_declares_itself_and_its_options(kind):
    module = kinds.load("backends", kind)
    assert issubclass(module.BACKEND, Backend)
    assert issubclass(module.OPTIONS, BackendOptions)


@pytest.mark.parametrize("kind", kinds.names("launchers"))
def test_every_launcher_declares_itself(kind):
    assert isinstance(kinds.load("launchers", kind).LAUNCHER, Launcher)


@pytest.mark.parametrize("kind", kinds.names("job_file.dialects"))
def test_every_dialect_declares_itself(kind):
    assert isinstance(kinds.load("job_file.dialects", kind).DIALECT, Dialect)


def test_a_misspelt_kind_gets_a_suggestion():
    with pytest.raises(LookupError, match="no launcher of kind 'torchrn'; did you mean 'torchrun'"):
        kinds.load("launchers", "torchrn")


def test_a_kind_like_no_other_gets_the_whole_list():
    with pytest.raises(LookupError, match=r"no backend of kind 'zzz'; there are .*oci_data_science"):
        kinds.load("backends", "zzz")


@pytest.mark.parametrize("kind", ["base", "../errors", "", "torchrun.LAUNCHER"])
def test_only_kinds_are_imported(kind):
    with pytest.raises(LookupError):
        kinds.load("launchers", kind)


@pytest.mark.parametrize("kind", kinds.names("backends"))
def test_every_field_that_a_backend_reads_is_known_in_connections_of_its_types(kind):
    backend = kinds.load("backends", kind).BACKEND
    assert backend.conn_types
    for conn_type in backend.conn_types:
        assert set(backend.reads.__dataclass_fields__) <= known_fields(conn_type) <= known_fields()
