-- The tables of docs/dataset.schema.md in DuckDB. Paths are relative to the dataset's folder: `cd DATASET && duckdb -init duckdb.sql`.
CREATE OR REPLACE TEMPORARY VIEW processes AS SELECT * FROM read_parquet('processes/*/*.parquet', hive_partitioning = true, hive_types = {'job': VARCHAR});
CREATE OR REPLACE TEMPORARY VIEW points AS SELECT * FROM read_parquet('points/*/*.parquet', hive_partitioning = true, hive_types = {'job': VARCHAR});
CREATE OR REPLACE TEMPORARY VIEW sites AS SELECT * FROM read_parquet('sites/*/*.parquet', hive_partitioning = true, hive_types = {'job': VARCHAR});
CREATE OR REPLACE TEMPORARY VIEW stacks AS SELECT DISTINCT * FROM read_parquet('stacks/*/*.parquet', hive_partitioning = true, hive_types = {'job': VARCHAR});
CREATE OR REPLACE TEMPORARY VIEW blocks AS SELECT * FROM read_parquet('blocks/*/*.parquet', hive_partitioning = true, hive_types = {'job': VARCHAR});
