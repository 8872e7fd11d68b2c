"""The ranks of worker.py as tasks of a barrier stage of Spark, each in a Python worker.

    spark_job.py RANKS DRIVER NOTES LEAKING ENDING
"""

import os
import sys

from pyspark import BarrierTaskContext
from pyspark.sql import SparkSession


def main():
    count, driver, notes, leaking, ending = sys.argv[1:]
    here = os.path.dirname(os.path.abspath(__file__))

    def train(_):
        rank = BarrierTaskContext.get().partitionId()
        os.environ["RANK"] = str(rank)
        sys.path.insert(0, here)
        import worker

        total = worker.train(worker.Gpu(driver), rank, rank == int(leaking))
        worker.note(notes, rank)
        yield rank, total

    spark = SparkSession.builder.master(f"local[{count}]").config("spark.ui.enabled", "false").getOrCreate()
    ranks = spark.sparkContext.parallelize(range(int(count)), int(count))
    for rank, total in sorted(ranks.barrier().mapPartitions(train).collect()):
        print(f"rank {rank}: {total}")
    spark.stop()
    if ending == "fails":
        sys.exit(3)


if __name__ == "__main__":
    main()
