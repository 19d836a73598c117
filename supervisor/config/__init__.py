"""The settings: a TOML file is read, checked completely, and converted into frozen values."""

from supervisor.config.load import Checked, check, check_text, load
from supervisor.config.problems import ConfigError, Level, Problem
from supervisor.config.settings import Settings

__all__ = ["Checked", "ConfigError", "Level", "Problem", "Settings", "check", "check_text", "load"]
