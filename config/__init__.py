"""What a user writes: the document, its values and its problems. Knows no component and imports nothing of ours."""

from config.ids import ComponentId
from config.problems import ConfigError, Place, Problem
from config.settings import Ignored, SettingError, Settings
from config.units import Duration, Endpoint, Rate, Ratio, Secret, Size, Url

__all__ = [
    "ComponentId",
    "ConfigError",
    "Duration",
    "Endpoint",
    "Ignored",
    "Place",
    "Problem",
    "Rate",
    "Ratio",
    "Secret",
    "SettingError",
    "Settings",
    "Size",
    "Url",
]
