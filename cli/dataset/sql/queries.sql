-- Questions about many recordings, as views of the tables of docs/dataset.schema.md. The same text runs on DuckDB and Spark.

-- view: memory
-- The bytes of each process at its latest point, by call site. For `quantity` held and peak: those of the whole process.
-- Processes of a program and pipeline stage (-1: none) are compared with each other.
CREATE OR REPLACE TEMPORARY VIEW memory AS
SELECT s.job, p.program, coalesce(p.pipeline_stage, CAST(-1 AS BIGINT)) AS stage, 'site' AS quantity, s.site, s.pool, s.process,
       CAST(sum(s.bytes) AS BIGINT) AS bytes, CAST(sum(s.count) AS BIGINT) AS blocks
FROM sites s
JOIN processes p ON p.job = s.job AND p.process = s.process AND p.point = s.point AND p.at_unix_ns = s.at_unix_ns
WHERE s.level <> 'object'
GROUP BY s.job, p.program, coalesce(p.pipeline_stage, CAST(-1 AS BIGINT)), s.site, s.pool, s.process
UNION ALL
SELECT job, program, coalesce(pipeline_stage, CAST(-1 AS BIGINT)), 'held', '', false, process, held_bytes, held_count FROM processes
UNION ALL
SELECT job, program, coalesce(pipeline_stage, CAST(-1 AS BIGINT)), 'peak', '', false, process, peak_bytes, CAST(0 AS BIGINT) FROM processes;

-- view: site_names
-- One row per call site of a job.
CREATE OR REPLACE TEMPORARY VIEW site_names AS
SELECT job, site, min(loose_site) AS loose_site, min(label) AS label, min(file) AS file, min(line) AS line, min(module) AS module
FROM sites GROUP BY job, site;

-- view: memory_counts
-- How many processes of a program have each number of bytes at a call site, and how many do not have the call site: these have 0.
CREATE OR REPLACE TEMPORARY VIEW memory_counts AS
WITH programs AS (
    SELECT job, program, coalesce(pipeline_stage, CAST(-1 AS BIGINT)) AS stage, count(*) AS of_processes
    FROM processes GROUP BY job, program, coalesce(pipeline_stage, CAST(-1 AS BIGINT))),
counts AS (
    SELECT job, program, stage, quantity, site, pool, bytes, count(*) AS processes, CAST(sum(blocks) AS BIGINT) AS blocks
    FROM memory GROUP BY job, program, stage, quantity, site, pool, bytes)
SELECT c.job, c.program, c.stage, c.quantity, c.site, c.pool, c.bytes, c.processes, c.blocks, p.of_processes,
       CAST(p.of_processes - sum(c.processes) OVER (PARTITION BY c.job, c.program, c.stage, c.quantity, c.site, c.pool) AS BIGINT) AS absent
FROM counts c JOIN programs p ON p.job = c.job AND p.program = c.program AND p.stage = c.stage;

-- view: memory_judged
-- Whether each number of bytes is far from the usual one: the rule of docs/job.md. The usual one is the lower median, and the usual
-- distance from it the upper median of all distances, at least 1 % of the usual one.
CREATE OR REPLACE TEMPORARY VIEW memory_judged AS
WITH placed AS (
    SELECT *, absent + sum(processes) OVER (PARTITION BY job, program, stage, quantity, site, pool ORDER BY bytes) AS up_to
    FROM memory_counts),
medians AS (
    SELECT job, program, stage, quantity, site, pool, bytes, processes, blocks, of_processes, absent,
           CASE WHEN 2 * absent >= of_processes THEN CAST(0 AS BIGINT)
                ELSE min(CASE WHEN 2 * up_to >= of_processes THEN bytes END)
                     OVER (PARTITION BY job, program, stage, quantity, site, pool) END AS median_bytes
    FROM placed),
distances AS (
    SELECT *, abs(bytes - median_bytes) AS distance,
           CASE WHEN median_bytes <= abs(bytes - median_bytes) THEN absent ELSE CAST(0 AS BIGINT) END
           + sum(processes) OVER (PARTITION BY job, program, stage, quantity, site, pool ORDER BY abs(bytes - median_bytes)) AS up_to,
           absent + sum(CASE WHEN abs(bytes - median_bytes) <= median_bytes THEN processes ELSE 0 END)
           OVER (PARTITION BY job, program, stage, quantity, site, pool) AS up_to_absent
    FROM medians),
usual AS (
    SELECT job, program, stage, quantity, site, pool, bytes, processes, blocks, of_processes, absent, median_bytes, distance,
           greatest(
               least(coalesce(min(CASE WHEN 2 * up_to > of_processes THEN distance END)
                              OVER (PARTITION BY job, program, stage, quantity, site, pool), median_bytes),
                     CASE WHEN absent > 0 AND 2 * up_to_absent > of_processes THEN median_bytes ELSE CAST(9223372036854775807 AS BIGINT) END),
               CAST(floor(CAST(median_bytes AS DOUBLE) / 100e0) AS BIGINT), CAST(1 AS BIGINT)) AS deviation
    FROM distances)
SELECT job, program, stage, quantity, site, pool, bytes, processes, blocks, of_processes, absent, median_bytes, deviation,
       of_processes >= 2 AND distance >= 65536 AND 10 * distance + 10 > median_bytes
       AND (of_processes = 2 OR 0.6745e0 * CAST(distance AS DOUBLE) / CAST(deviation AS DOUBLE) >= 8e0)
       AND (of_processes >= 6 OR bytes >= 2 * median_bytes OR 2 * bytes <= median_bytes) AS is_out,
       -- The same for 0 bytes.
       absent > 0 AND of_processes >= 2 AND median_bytes >= 65536
       AND (of_processes = 2 OR 0.6745e0 * CAST(median_bytes AS DOUBLE) / CAST(deviation AS DOUBLE) >= 8e0) AS absent_are_out
FROM usual;

-- view: job_sites
-- Call sites over all processes of a job, as the second table of `culeak report` over a folder.
-- `outliers`: how many processes stand out: those with at most `out_to_bytes` or at least `out_from_bytes`. `differs`: the processes
-- have no common value, so none stands out.
CREATE OR REPLACE TEMPORARY VIEW job_sites AS
WITH sums AS (
    SELECT job, program, stage, quantity, site, pool, max(of_processes) AS of_processes, max(absent) AS absent,
           max(median_bytes) AS median_bytes, max(deviation) AS deviation, min(bytes) AS least_bytes, max(bytes) AS max_bytes,
           CAST(sum(processes) AS BIGINT) AS processes, CAST(sum(bytes * processes) AS BIGINT) AS sum_bytes,
           CAST(sum(blocks) AS BIGINT) AS sum_blocks,
           CAST(sum(CASE WHEN is_out THEN processes ELSE 0 END) + max(CASE WHEN absent_are_out THEN absent ELSE 0 END) AS BIGINT) AS out,
           CAST(sum(CASE WHEN is_out THEN processes * abs(bytes - median_bytes) ELSE 0 END)
                + max(CASE WHEN absent_are_out THEN absent * median_bytes ELSE 0 END) AS BIGINT) AS apart_bytes,
           min(CASE WHEN is_out AND bytes > median_bytes THEN bytes END) AS out_from_bytes,
           coalesce(max(CASE WHEN is_out AND bytes < median_bytes THEN bytes END),
                    max(CASE WHEN absent_are_out THEN CAST(0 AS BIGINT) END)) AS out_to_bytes
    FROM memory_judged GROUP BY job, program, stage, quantity, site, pool),
judged AS (SELECT *, out <= 1 OR 4 * out <= of_processes AS has_common_value FROM sums)
SELECT s.job, s.program, s.stage, s.quantity, s.site, s.pool, n.label, n.file, n.line, s.sum_bytes, s.sum_blocks, s.median_bytes,
       CASE WHEN s.absent > 0 THEN CAST(0 AS BIGINT) ELSE s.least_bytes END AS min_bytes, s.max_bytes, s.processes, s.of_processes,
       s.of_processes >= 2 AND ((s.out > 0 AND NOT s.has_common_value)
           OR (s.out = 0 AND s.deviation >= 65536 AND 4 * s.deviation + 4 > s.median_bytes)) AS differs,
       CASE WHEN s.has_common_value THEN s.out ELSE CAST(0 AS BIGINT) END AS outliers,
       CASE WHEN s.has_common_value THEN s.apart_bytes ELSE CAST(0 AS BIGINT) END AS apart_bytes,
       s.out_to_bytes, s.out_from_bytes
FROM judged s LEFT JOIN site_names n ON n.job = s.job AND n.site = s.site;

-- view: outliers
-- Which processes stand out, at which call site, as `culeak report` names them. `quantity` held and peak: over the whole process.
CREATE OR REPLACE TEMPORARY VIEW outliers AS
SELECT j.job, j.program, j.stage, j.quantity, j.site, j.pool, j.label, j.file, j.line, p.rank, p.host, p.pid, p.process,
       coalesce(m.bytes, CAST(0 AS BIGINT)) AS bytes, j.median_bytes, j.outliers, j.of_processes, j.apart_bytes
FROM job_sites j
JOIN processes p ON p.job = j.job AND p.program = j.program AND coalesce(p.pipeline_stage, CAST(-1 AS BIGINT)) = j.stage
LEFT JOIN memory m ON m.job = j.job AND m.program = j.program AND m.stage = j.stage AND m.quantity = j.quantity AND m.site = j.site
                  AND m.pool = j.pool AND m.process = p.process
WHERE j.outliers > 0
  AND (coalesce(m.bytes, CAST(0 AS BIGINT)) <= j.out_to_bytes OR coalesce(m.bytes, CAST(0 AS BIGINT)) >= j.out_from_bytes);

-- view: site_days
-- The bytes of each process and call site at the last point of each day (UTC) at which the process was running.
CREATE OR REPLACE TEMPORARY VIEW site_days AS
WITH running AS (
    SELECT job, process, at_unix_ns, CAST(floor(CAST(at_unix_ns AS DOUBLE) / 86400e9) AS BIGINT) AS day,
           min(at_unix_ns) OVER (PARTITION BY job, process) AS first_unix_ns
    FROM points WHERE point = 'now'),
days AS (
    SELECT job, process, day, max(at_unix_ns) AS at_unix_ns, max(first_unix_ns) AS first_unix_ns
    FROM running GROUP BY job, process, day),
known AS (SELECT DISTINCT job, process, site, pool FROM sites WHERE point = 'now' AND level <> 'object'),
bytes AS (
    SELECT job, process, at_unix_ns, site, pool, CAST(sum(bytes) AS BIGINT) AS bytes
    FROM sites WHERE point = 'now' AND level <> 'object' GROUP BY job, process, at_unix_ns, site, pool)
SELECT d.job, d.process, k.site, k.pool, d.day, DATE '1970-01-01' + CAST(d.day AS INT) AS date, d.at_unix_ns,
       CAST(d.at_unix_ns - d.first_unix_ns AS DOUBLE) / 3600e9 AS hours,
       coalesce(b.bytes, CAST(0 AS BIGINT)) AS bytes
FROM days d
JOIN known k ON k.job = d.job AND k.process = d.process
LEFT JOIN bytes b ON b.job = d.job AND b.process = d.process AND b.at_unix_ns = d.at_unix_ns AND b.site = k.site AND b.pool = k.pool;

-- view: site_growth
-- Growth of each call site over days: the Theil-Sen pace in bytes per hour, as in `culeak trend`, rounded. Of the days before a call
-- site held memory, the last counts.
CREATE OR REPLACE TEMPORARY VIEW site_growth AS
WITH begun AS (
    SELECT *, max(CASE WHEN bytes > 0 THEN 1 ELSE 0 END) OVER (PARTITION BY job, process, site, pool ORDER BY day) AS has_begun,
           count(*) OVER (PARTITION BY job, process, site, pool) AS days,
           min(bytes) OVER (PARTITION BY job, process, site, pool) AS least_bytes,
           max(bytes) OVER (PARTITION BY job, process, site, pool) AS most_bytes,
           first_value(bytes) OVER (PARTITION BY job, process, site, pool ORDER BY day) AS first_bytes,
           first_value(bytes) OVER (PARTITION BY job, process, site, pool ORDER BY day DESC) AS last_bytes
    FROM site_days),
followed AS (SELECT *, lead(has_begun) OVER (PARTITION BY job, process, site, pool ORDER BY day) AS begins_next FROM begun),
counted AS (SELECT * FROM followed WHERE has_begun = 1 OR begins_next = 1 OR most_bytes = 0),
slopes AS (
    SELECT a.job, a.process, a.site, a.pool, a.days, a.first_bytes, a.last_bytes, a.least_bytes, a.most_bytes,
           CAST(b.bytes - a.bytes AS DOUBLE) / (b.hours - a.hours) AS slope
    FROM counted a
    JOIN counted b ON b.job = a.job AND b.process = a.process AND b.site = a.site AND b.pool = a.pool AND b.day > a.day
    WHERE b.hours > a.hours),
ranked AS (
    SELECT *, row_number() OVER (PARTITION BY job, process, site, pool ORDER BY slope) AS place,
           count(*) OVER (PARTITION BY job, process, site, pool) AS slopes
    FROM slopes)
SELECT r.job, q.program, q.rank, q.host, q.pid, r.process, r.site, r.pool, n.label, n.file, n.line, r.days, r.first_bytes, r.last_bytes,
       r.least_bytes, r.most_bytes, r.bytes_per_hour
FROM (SELECT job, process, site, pool, max(days) AS days, max(first_bytes) AS first_bytes, max(last_bytes) AS last_bytes,
             max(least_bytes) AS least_bytes, max(most_bytes) AS most_bytes, CAST(round(avg(slope)) AS BIGINT) AS bytes_per_hour
      FROM ranked WHERE 2 * place >= slopes AND 2 * place <= slopes + 2
      GROUP BY job, process, site, pool) AS r
JOIN processes q ON q.job = r.job AND q.process = r.process
LEFT JOIN site_names n ON n.job = r.job AND n.site = r.site;

-- view: worst_jobs
-- Jobs by month (UTC) in which their last process began, those that hold most memory first.
CREATE OR REPLACE TEMPORARY VIEW worst_jobs AS
WITH jobs AS (
    SELECT job, DATE '1970-01-01' + CAST(floor(CAST(max(started_unix_ns) AS DOUBLE) / 86400e9) AS INT) AS started,
           count(*) AS processes, count(DISTINCT host) AS hosts, min(CASE WHEN finished THEN 1 ELSE 0 END) = 1 AS finished,
           CAST(sum(held_bytes) AS BIGINT) AS held_bytes, CAST(sum(held_count) AS BIGINT) AS held_blocks,
           CAST(sum(pool_bytes) AS BIGINT) AS pool_bytes, CAST(sum(peak_bytes) AS BIGINT) AS peak_bytes
    FROM processes GROUP BY job)
SELECT CAST(year(started) AS INT) AS year, CAST(month(started) AS INT) AS month,
       CAST(row_number() OVER (PARTITION BY year(started), month(started) ORDER BY held_bytes DESC, job) AS BIGINT) AS place,
       job, started, finished, processes, hosts, held_bytes, held_blocks, pool_bytes, peak_bytes
FROM jobs;

-- view: peak_by_category
-- The memory at the peak of each process, by category; a sum over `process` is that of the job.
CREATE OR REPLACE TEMPORARY VIEW peak_by_category AS
SELECT s.job, p.program, p.rank, p.host, p.pid, s.process, s.category,
       CAST(sum(s.bytes) AS BIGINT) AS bytes, CAST(sum(s.count) AS BIGINT) AS blocks
FROM sites s JOIN processes p ON p.job = s.job AND p.process = s.process
WHERE s.point = 'peak' AND s.level <> 'object'
GROUP BY s.job, p.program, p.rank, p.host, p.pid, s.process, s.category;

-- view: regressions
-- What changed from one job to another, by call site, as `culeak diff`. Name both: WHERE before_job = '…' AND after_job = '…'.
-- A call site matches by line, and otherwise by function, in the order of lines.
CREATE OR REPLACE TEMPORARY VIEW regressions AS
WITH named AS (
    SELECT m.job, m.program, m.site, m.pool, m.bytes, m.blocks, n.loose_site, n.label, n.file, n.line
    FROM (SELECT job, program, site, pool, CAST(sum(bytes) AS BIGINT) AS bytes, CAST(sum(blocks) AS BIGINT) AS blocks
          FROM memory WHERE quantity = 'site' GROUP BY job, program, site, pool) AS m
    LEFT JOIN site_names n ON n.job = m.job AND n.site = m.site),
programs AS (SELECT DISTINCT job, program FROM processes),
pairs AS (
    SELECT a.job AS before_job, b.job AS after_job, a.program, s.side, CASE WHEN s.side = 0 THEN a.job ELSE b.job END AS job
    FROM programs a JOIN programs b ON a.program = b.program AND a.job <> b.job CROSS JOIN (VALUES (0), (1)) AS s(side)),
sides AS (
    SELECT p.before_job, p.after_job, p.side, n.*,
           count(*) OVER (PARTITION BY p.before_job, p.after_job, p.program, n.site, n.pool) AS in_sides
    FROM pairs p JOIN named n ON n.job = p.job AND n.program = p.program),
matched AS (SELECT *, CASE WHEN in_sides = 2 THEN site ELSE loose_site END AS match_by FROM sides),
placed AS (
    SELECT *, row_number() OVER (PARTITION BY before_job, after_job, program, pool, in_sides, match_by, side
                                 ORDER BY line NULLS FIRST, site) AS place
    FROM matched),
changes AS (
    SELECT before_job, after_job, program, pool,
           coalesce(max(CASE WHEN side = 1 THEN site END), max(site)) AS site,
           coalesce(max(CASE WHEN side = 1 THEN label END), max(label)) AS label,
           coalesce(max(CASE WHEN side = 1 THEN file END), max(file)) AS file,
           coalesce(max(CASE WHEN side = 1 THEN line END), max(line)) AS line,
           max(CASE WHEN side = 0 THEN bytes END) AS old_bytes, max(CASE WHEN side = 0 THEN blocks END) AS old_blocks,
           max(CASE WHEN side = 1 THEN bytes END) AS new_bytes, max(CASE WHEN side = 1 THEN blocks END) AS new_blocks
    FROM placed GROUP BY before_job, after_job, program, pool, in_sides, match_by, place)
SELECT before_job, after_job, program,
       CASE WHEN old_bytes IS NULL THEN 'new' WHEN new_bytes IS NULL THEN 'gone'
            WHEN new_bytes > old_bytes OR (new_bytes = old_bytes AND new_blocks > old_blocks) THEN 'grown'
            WHEN new_bytes = old_bytes AND new_blocks = old_blocks THEN 'unchanged' ELSE 'shrunk' END AS state,
       site, pool, label, file, line,
       coalesce(old_bytes, CAST(0 AS BIGINT)) AS before_bytes, coalesce(new_bytes, CAST(0 AS BIGINT)) AS after_bytes,
       coalesce(new_bytes, CAST(0 AS BIGINT)) - coalesce(old_bytes, CAST(0 AS BIGINT)) AS bytes_delta,
       coalesce(old_blocks, CAST(0 AS BIGINT)) AS before_blocks, coalesce(new_blocks, CAST(0 AS BIGINT)) AS after_blocks
FROM changes;
