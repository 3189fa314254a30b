"""`tidemill bench`: one file per measurement, each a small function that returns figures."""
