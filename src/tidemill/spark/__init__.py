"""Tidemill's tables for Spark: schedule from a DataFrame, read topics, pending messages and history.

    import tidemill.spark

    tidemill.spark.register(spark)
    reminders.write.format("tidemill").option("topic", "reminders").mode("append").save()
    spark.read.format("tidemill_pending").load().groupBy("topic").count().show()
    tidemill.spark.sql(spark, "SELECT via, max(lateness_ms) FROM history GROUP BY via").show()
    tidemill.spark.cancel(tidemill.spark.sql(spark, "SELECT topic, id, seq FROM pending WHERE tag = 'trial'"))

Everything goes through the broker's Flight endpoint; docs/spark.md has the options. Needs pyspark.
"""

from __future__ import annotations

from tidemill.spark.cancelling import cancel
from tidemill.spark.query import sql
from tidemill.spark.sources import register

__all__ = ["cancel", "register", "sql"]
