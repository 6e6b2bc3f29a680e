"""Cortex-M cores that firmware can be written for: compiler flags, and which memory protection unit they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ..errors import BadOption
from .device import Device, device_names, load_device

Protection = Literal["none", "v7", "v8"]
"""v7 is also that of ARMv6-M: regions are powers of two with eight sub-regions; v8: base and limit."""


@dataclass(frozen=True, slots=True)
class Core:
    """`name` is the key of the table of stack use."""

    name: str
    flags: tuple[str, ...]
    protection: Protection


def _core(name: str, mcpu: str, fpu: str, protection: Protection) -> Core:
    float_flags = (f"-mfpu={fpu}", "-mfloat-abi=hard") if fpu else ("-mfloat-abi=soft",)
    return Core(name, (f"-mcpu={mcpu}", "-mthumb", *float_flags), protection)


CORES: Final = {
    core.name: core
    for core in (
        _core("cortex-m0", "cortex-m0", "", "none"),
        _core("cortex-m0plus", "cortex-m0plus", "", "v7"),
        _core("cortex-m3", "cortex-m3", "", "v7"),
        _core("cortex-m4", "cortex-m4", "fpv4-sp-d16", "v7"),
        _core("cortex-m7", "cortex-m7", "fpv5-sp-d16", "v7"),
        _core("cortex-m7-double", "cortex-m7", "fpv5-d16", "v7"),
        _core("cortex-m33", "cortex-m33", "fpv5-sp-d16", "v8"),
        # Vectors of MVE flush denormals to zero, so exact kernels do without them.
        _core("cortex-m55", "cortex-m55+nomve", "auto", "v8"),
    )
}


def core_of(device: Device) -> Core:
    """Raises BadOption for a device that there is no port to."""
    name = "cortex-m7-double" if (device.core, device.fpu) == ("cortex-m7", "fpv5-d16") else device.core
    if name not in CORES or not device.is_bare:
        devices = [known for known in device_names() if is_ported(load_device(known))]
        raise BadOption(
            f"there is no firmware for {device.name}", why=f"its core is a {device.core}",
            help="--device " + ", ".join(devices),
        )  # fmt: skip
    return CORES[name]


def is_ported(device: Device) -> bool:
    return device.is_bare and device.core in CORES
