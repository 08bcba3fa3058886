"""What a user writes: the document, its values and its problems. Knows no component and imports nothing of ours."""

from config.ids import ComponentId
from config.settings import SettingError, Settings
from config.units import Duration, Endpoint, Rate, Ratio, Secret, Size, Url

__all__ = [
    "ComponentId",
    "Duration",
    "Endpoint",
    "Rate",
    "Ratio",
    "Secret",
    "SettingError",
    "Settings",
    "Size",
    "Url",
]
