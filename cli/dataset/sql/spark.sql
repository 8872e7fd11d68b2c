-- The tables of docs/dataset.schema.md in Spark. Paths are relative to the dataset's folder: `cd DATASET && spark-sql -i spark.sql`.
SET spark.sql.sources.partitionColumnTypeInference.enabled = false;
CREATE OR REPLACE TEMPORARY VIEW processes USING parquet OPTIONS (path 'processes');
CREATE OR REPLACE TEMPORARY VIEW points USING parquet OPTIONS (path 'points');
CREATE OR REPLACE TEMPORARY VIEW sites USING parquet OPTIONS (path 'sites');
CREATE OR REPLACE TEMPORARY VIEW stacks_files USING parquet OPTIONS (path 'stacks');
CREATE OR REPLACE TEMPORARY VIEW stacks AS SELECT DISTINCT * FROM stacks_files;
CREATE OR REPLACE TEMPORARY VIEW blocks USING parquet OPTIONS (path 'blocks');
