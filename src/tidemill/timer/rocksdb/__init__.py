"""The timer store on RocksDB."""
