"""Exact α-entmax sparse attention: reading what the laboratory recorded, and drawing it."""

from splash_attention.reports import Report, ReportError, open_report, recorded_report

__all__ = ["Report", "ReportError", "open_report", "recorded_report"]
