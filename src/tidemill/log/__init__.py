"""Bytes on disk: files, frames, segments, group commit, checkpoints, locks. No idea what a message is."""
