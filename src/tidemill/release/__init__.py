"""Letting messages go at their millisecond: near set, ready reader, topic backlogs, releaser."""
