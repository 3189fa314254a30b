"""Comparison with other systems, fault and downtime campaigns: run from a checkout, not installed.

`tidemill bench` measures Tidemill alone and is installed with it. README.md says what each of these measures
and how to run it.
"""
