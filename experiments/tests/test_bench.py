"""splash bench: kernels of others are timed and checked from outside, cheats are caught, and reports are read by every command."""

from __future__ import annotations

import json
import math

import bench_kernels as kernels
import pytest
from conftest import ROOT, Splash

QUICK = ("--samples", "6", "--cache", "warm", "--seed", "7")


@pytest.fixture
def ceilings(splash: Splash) -> str:
    """Ceilings of a processor that no test exceeds, so that none needs two seconds to measure them."""
    from splash_laboratory.report_writer import Column, write_report

    names = ["cpu fma", "cpu fma", "cpu l1 read", "cpu l2 read", "cpu dram read"]
    rates = [1e12, 5e11, 1e12, 1e12, 4e10]
    raise NotImplementedError(Column, write_report, names, rates)
