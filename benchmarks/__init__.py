"""Comparison with other systems and of timer stores, faults and downtime: run from a checkout, not installed.

`tidemill bench` measures Tidemill alone and is installed with it. README.md says what each of these measures
and how to run it.
"""
