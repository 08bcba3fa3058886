"""DogStatsD's protocol, whatever the way on which lines come: parsed, added up in windows, handed on as OTLP."""

from sidecar.dogstatsd.distribution import Distribution
from sidecar.dogstatsd.intake import AggregationSettings, DogStatsDIntake

__all__ = ["AggregationSettings", "Distribution", "DogStatsDIntake"]
