-- What the jobs `outcomes` and `waits` make, in DuckDB: the same questions about the same files.
-- {journal} and {out} are put in; broken files, which it cannot pass over, begin with zz. A statement ends where a line ends with a semicolon.

COPY (
    WITH events AS (
        SELECT *, row_number() OVER (
            PARTITION BY operation_id ORDER BY event = 'watched', "at", seq, event
        ) AS place, count(*) OVER (PARTITION BY operation_id) AS records
        FROM read_parquet('{journal}/*/*/[0-9]*.parquet', hive_partitioning = false)
    )
    SELECT operation_id, kind, keys, worker, watched_at, deadline,
           CASE WHEN event <> 'watched' THEN event
                WHEN epoch_us(deadline) + 900000000 < (SELECT max(epoch_us("at")) FROM events)
                THEN 'lost' ELSE 'open' END AS outcome,
           completed_at,
           greatest(0, epoch_us(completed_at) - epoch_us(watched_at)) AS wait_us,
           epoch_us(deadline) - epoch_us(watched_at) AS timeout_us,
           lateness_us, completed_by, job_id, handler, attempt, state, error, labels, seq, records,
           epoch_us(watched_at) // 86400000000 AS date,
           epoch_us(watched_at) // 3600000000 % 24 AS hour
    FROM events WHERE place = 1
) TO '{out}/outcomes' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (date, hour));

-- waits

CREATE VIEW outcomes AS SELECT * FROM read_parquet('{out}/outcomes/*/*/*.parquet');

CREATE MACRO measured(rows) AS TABLE
    SELECT name, count(*) AS operations,
           count(*) FILTER (outcome = 'fired') AS fired,
           count(*) FILTER (outcome = 'expired') AS expired,
           count(*) FILTER (outcome = 'cancelled') AS cancelled,
           count(*) FILTER (outcome = 'drained') AS drained,
           count(*) FILTER (outcome = 'lost') AS lost,
           count(*) FILTER (outcome = 'open') AS open,
           avg(wait_us) AS wait_mean, max(wait_us) AS wait_max,
           quantile_disc(wait_us, [0.5, 0.9, 0.95, 0.99, 0.999]) AS wait_percentiles,
           quantile_disc(lateness_us, [0.5, 0.9, 0.95, 0.99, 0.999]) AS lateness_percentiles
    FROM query_table(rows) GROUP BY name;

CREATE VIEW of_kinds AS SELECT kind AS name, outcome, wait_us, lateness_us FROM outcomes;

CREATE VIEW of_prefixes AS
    SELECT unnest(list_distinct([regexp_extract(key, '^[^:/]*') FOR key IN keys])) AS name,
           outcome, wait_us, lateness_us FROM outcomes;

CREATE VIEW of_hours AS
    SELECT kind || ' ' || epoch_us(watched_at) // 3600000000 AS name, outcome, wait_us, lateness_us
    FROM outcomes;

COPY (FROM measured('of_kinds')) TO '{out}/by_kind.parquet';

COPY (
    SELECT kind, quantile_disc(timeout_us, [0.5, 0.9, 0.95, 0.99, 0.999]) FROM outcomes GROUP BY kind
) TO '{out}/timeouts.parquet';

COPY (FROM measured('of_prefixes')) TO '{out}/by_key_prefix.parquet';

COPY (FROM measured('of_hours')) TO '{out}/by_hour.parquet';

COPY (
    SELECT key, count(*) AS operations, count(*) FILTER (outcome = 'fired') AS fired,
           count(*) FILTER (outcome = 'expired') AS expired, avg(wait_us), max(wait_us)
    FROM (SELECT unnest(list_distinct(keys)) AS key, outcome, wait_us FROM outcomes)
    GROUP BY key ORDER BY operations DESC LIMIT 100
) TO '{out}/hot_keys.parquet';

COPY (
    WITH changes AS (
        SELECT kind, epoch_us(watched_at) // 1000000 AS second, 1 AS change FROM outcomes
        UNION ALL
        SELECT kind, epoch_us(coalesce(completed_at, deadline)) // 1000000, -1 FROM outcomes
    ), seconds AS (SELECT kind, second, sum(change) AS change FROM changes GROUP BY ALL),
    levels AS (
        SELECT kind, second, sum(change) OVER (PARTITION BY kind ORDER BY second) AS level
        FROM seconds
    )
    SELECT kind, second // 60 AS minute, avg(level), max(level) FROM levels GROUP BY ALL
) TO '{out}/parked.parquet';

COPY (
    SELECT epoch_us(watched_at) // 60000000 AS minute, outcome, count(*) FROM outcomes GROUP BY ALL
) TO '{out}/timeline.parquet';

COPY (
    SELECT kind, outcome, floor(log2(greatest(wait_us, 1)) * 128) AS bucket, count(*)
    FROM outcomes GROUP BY ALL
) TO '{out}/wait_counts.parquet';

COPY (
    SELECT kind, floor(log2(greatest(lateness_us, 1)) * 128) AS bucket, count(*)
    FROM outcomes WHERE lateness_us IS NOT NULL GROUP BY ALL
) TO '{out}/lateness_counts.parquet';
