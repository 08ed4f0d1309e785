"""Where records come from: CSV, TSV, NDJSON, CloudEvents and Parquet, packed or not, in constant memory."""

from __future__ import annotations

from pgonce.sources.blocks import MAX_RECORD_BYTES
from pgonce.sources.opened import Input, open_input
from pgonce.sources.options import ReadingOptions

__all__ = ["MAX_RECORD_BYTES", "Input", "ReadingOptions", "open_input"]
