"""Reads configuration files as mappings. OmegaConf's types allow lists as well, but no file here is a list."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from results_io import UserError


def read(path: Path) -> DictConfig:
    """The settings in one file, without those of the files that it names. UserError if it is not a mapping."""
    found = OmegaConf.load(path)
    if not isinstance(found, DictConfig):
        raise UserError(f"{path} is a list; write settings as `name: value`")
    return found


def merge(*parts: DictConfig) -> DictConfig:
    """The settings of all parts; those of a later one replace those of an earlier one."""
    return cast("DictConfig", OmegaConf.merge(*parts))


def plain(config: DictConfig) -> dict[str, Any]:
    """The settings as plain data, with references to other settings replaced by their values."""
    return cast("dict[str, Any]", OmegaConf.to_container(config, resolve=True))
