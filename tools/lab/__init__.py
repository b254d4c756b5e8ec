"""Test networks: stations as network namespaces on one bridge, with impairments, partitions and captures (docs/lab.md)."""

from .errors import LabError, LabNotFound, LabTimeout, LabUnsupported
from .impair import Impairment
from .lab import Lab
from .station import DaemonProcess, Station

__all__ = ["DaemonProcess", "Impairment", "Lab", "LabError", "LabNotFound", "LabTimeout", "LabUnsupported", "Station"]
