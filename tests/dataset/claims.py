"""Claims about datasets, on DuckDB and PyArrow, and on Spark if WITH_SPARK is set. Called by run.sh: claims.py CULEAK FOLDER.

FOLDER contains `job`, recordings of 64 ranks of which some leak, and `calm`, recordings of 16 equal ranks. An answer is compared as
text with all its digits.
"""

import contextlib
import copy
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import duckdb
import pyarrow.parquet

CULEAK, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
HERE = pathlib.Path(__file__).parent
DATASET = FOLDER / "dataset"
# Against hangs alone.
LIMIT_S = 300
DAY = 86_400_000_000_000
ENVIRONMENT = {**os.environ, "CULEAK_CACHE_DIR": ""}
ENVIRONMENT["LD_LIBRARY_PATH"] = subprocess.run([CULEAK, "shim-path", "--fake-driver"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
TABLES = ["processes", "points", "sites", "stacks", "blocks"]


def culeak(*words, code=0):
    done = subprocess.run([CULEAK, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert done.returncode == code, (words, done.returncode, done.stderr)
    return done


def answer(*words, code=0):
    return json.loads(culeak(*words, "--json", code=code).stdout)


def export(*words, to=DATASET, code=0):
    return culeak("export", *words, "-f", "dataset", "-o", to, code=code)


class DuckDb:
    def __init__(self, dataset):
        self.dataset, self.session = dataset, duckdb.connect()
        self.execute((dataset / "duckdb.sql").read_text())

    def execute(self, query):
        with contextlib.chdir(self.dataset):
            return self.session.execute(query).fetchall()

    def rows(self, query):
        return [tuple(map(plain, row)) for row in self.execute(query)]


class Spark:
    started = None

    def __init__(self, dataset):
        if Spark.started is None:
            from pyspark.sql import SparkSession

            builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
            builder = builder.config("spark.sql.shuffle.partitions", "1").config("spark.log.level", "ERROR")
            # To compile a query takes longer than to run it on these few rows.
            builder = builder.config("spark.sql.codegen.wholeStage", "false").config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
            builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
            builder = builder.config("spark.sql.session.timeZone", "UTC")
            Spark.started = builder.getOrCreate()
        # First as a pattern, then as a text.
        folder = re.sub(r"([*?\[\]{}\\])", r"\\\1", str(dataset)).replace("\\", "\\\\").replace("'", "\\'")
        views = (dataset / "spark.sql").read_text().replace("path '", f"path '{folder}/")
        for statement in views.split(";\n"):
            if statement.strip():
                Spark.started.sql(statement)

    def rows(self, query):
        return [tuple(map(plain, row)) for row in Spark.started.sql(query).collect()]


def plain(value):
    """Dates as text; NULL as None; numbers as they are."""
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


OPEN = {}


def engines(dataset):
    """The engines with the views of a dataset, which Spark must open again when files have changed."""
    files = sorted((str(path), path.stat().st_mtime_ns) for path in dataset.rglob("*.parquet"))
    if OPEN.get("files") != (dataset, files):
        OPEN.update(files=(dataset, files), engines=[DuckDb(dataset), *([Spark(dataset)] if "WITH_SPARK" in os.environ else [])])
    return OPEN["engines"]


def both(query, dataset=DATASET):
    """The rows that all engines return, in order."""
    first, *others = (sorted(engine.rows(query), key=repr) for engine in engines(dataset))
    for second in others:
        assert first == second, f"{query}\nDuckDB: {first[:5]}\nSpark: {second[:5]}"
    return first


def equal(found, expected, what):
    found, expected = (json.dumps(sorted(rows, key=repr)) for rows in (found, expected))
    assert found == expected, f"{what}\nengines: {found[:1500]}\nculeak:  {expected[:1500]}"


def sums_of_a_job_are_those_of_the_report():
    for name in ["job", "calm"]:
        job = answer("report", FOLDER / name)
        rows = both(f"SELECT sum(held_bytes), sum(held_count), sum(pool_bytes), count(*), count(DISTINCT host) FROM processes WHERE job = '{name}'")
        expected = (job["held"]["bytes"], job["held"]["count"], job["pools"]["bytes"], len(job["processes"]), job["hosts"])
        assert [tuple(map(int, row)) for row in rows] == [expected], (rows, expected)
        rows = both(f"SELECT rank, host, pid, state, finished, held_bytes, peak_bytes FROM processes WHERE job = '{name}'")
        keys = ["rank", "host", "pid", "state", "finished", "held", "peak_bytes"]
        of = lambda process: tuple(process[key]["bytes"] if key == "held" else process[key] for key in keys)
        equal(rows, [of(process) for process in job["processes"]], name)


def call_sites_and_outliers_are_those_of_the_report():
    for name in ["job", "calm"]:
        job = answer("report", FOLDER / name)
        columns = "site, pool, sum_bytes, sum_blocks, median_bytes, min_bytes, max_bytes, processes, of_processes, differs, outliers, apart_bytes"
        rows = both(f"SELECT {columns} FROM job_sites WHERE job = '{name}' AND quantity = 'site'")
        assert len(rows) > 50, rows
        expected = []
        for row in job["sites"]:
            out = row["stands_out"] or {"count": 0, "apart_bytes": 0}
            numbers = [row[key] for key in ["sum", "sum_count", "median", "min", "max", "processes", "of_processes"]]
            expected.append((row["site"]["fingerprint"], row["site"]["pool"], *numbers, row["differs"], out["count"], out["apart_bytes"]))
        equal(rows, expected, name)
        rows = both(f"SELECT site, rank, host, pid, bytes FROM outliers WHERE job = '{name}' AND quantity = 'site'")
        expected = [
            (row["site"]["fingerprint"], out["rank"], out["host"], out["pid"], out["bytes"])
            for row in job["sites"] if row["stands_out"] for out in row["stands_out"]["processes"]
        ]
        equal(rows, expected, name)
        assert bool(rows) == (name == "job")
        rows = both(f"SELECT quantity, rank, pid, bytes FROM outliers WHERE job = '{name}' AND quantity <> 'site'")
        expected = [(out["what"], one["rank"], one["pid"], one["bytes"]) for out in job["stands_out"] for one in out["processes"]]
        equal(rows, expected, name)
    planted = both("SELECT DISTINCT rank FROM outliers WHERE job = 'job' AND file = '/home/me/train.py' AND line = 88")
    assert planted == [(17,), (40,), (41,), (42,), (43,)], planted


def the_peak_by_category_is_that_of_each_report():
    paths = sorted((FOLDER / "runs").glob("*.culeak"))
    assert len(paths) == 2
    for path in paths:
        report = answer("report", path, "--at", "peak", "--by", "category")
        pid = report["process"]["pid"]
        rows = both(f"SELECT category, bytes, blocks FROM peak_by_category WHERE job = 'runs' AND pid = {pid}")
        equal(rows, [(row["label"], row["bytes"], row["count"]) for row in report["rows"]], path)
        assert sum(row[1] for row in rows) == (64 + 512) << 20, rows


def changes_from_one_job_to_another_are_those_of_diff():
    first, second = (FOLDER / "build1.json", FOLDER / "build2.json")
    rows = both(
        "SELECT state, label, pool, before_bytes, after_bytes, bytes_delta, before_blocks, after_blocks FROM regressions "
        "WHERE before_job = 'build1' AND after_job = 'build2'"
    )
    diff = answer("diff", first, second, "--all")
    keys = ["before", "after"]
    expected = [
        (row["state"], row["label"], row["pool"], *(row[key]["bytes"] for key in keys), row["bytes_delta"], *(row[key]["count"] for key in keys))
        for row in diff["rows"]
    ]
    equal(rows, expected, "diff")
    states = {row[0] for row in rows}
    assert {"grown", "gone", "new", "unchanged"} <= states, states


def growth_over_days_is_that_of_trend():
    trend = answer("trend", FOLDER / "days", "--all", "--top", "0")
    growth = {row["site"]["fingerprint"]: row["bytes"] for row in trend["rows"] if "object" not in row["site"]}
    rows = both("SELECT site, first_bytes, last_bytes, least_bytes, most_bytes, bytes_per_hour FROM site_growth WHERE job = 'days'")
    round_half_away = lambda x: int(x + 0.5) if x >= 0 else -int(-x + 0.5)
    expected = [
        (site, bytes["first"], bytes["last"], bytes["least"], bytes["most"], round_half_away(bytes["pace"]))
        for site, bytes in growth.items()
    ]
    equal(rows, expected, "trend")
    assert any(row[5] > 0 for row in rows) and len(rows) >= 2, rows
    days = both("SELECT date, sum(bytes) FROM site_days WHERE job = 'days' GROUP BY date")
    assert len(days) == 9, days


def worst_jobs_are_in_order():
    rows = both("SELECT year, month, place, job, processes, held_bytes FROM worst_jobs")
    held = {name: answer("report", FOLDER / name)["held"]["bytes"] for name in ["job", "calm"]}
    found = {row[3]: row[5] for row in rows}
    assert found["job"] == held["job"] and found["calm"] == held["calm"], (found, held)
    months = {row[:2] for row in rows}
    for month in months:
        places = [(row[2], -row[5]) for row in rows if row[:2] == month]
        assert sorted(places) == sorted(places, key=lambda place: place[1]), places


def blocks_and_objects_add_up_to_the_report():
    path = sorted((FOLDER / "runs").glob("*.culeak"))[0]
    report = answer("report", path)
    pid = report["process"]["pid"]
    rows = both(
        "SELECT b.kind, sum(b.bytes), count(*), count(DISTINCT s.stack) FROM blocks b JOIN processes p ON p.process = b.process AND p.job = b.job "
        f"JOIN stacks s ON s.stack = b.stack AND s.job = b.job WHERE b.job = 'runs' AND p.pid = {pid} AND b.level = 'held' GROUP BY b.kind"
    )
    kinds = {}
    for row in report["rows"]:
        for kind, tally in row["kinds"].items():
            old = kinds.get(kind, (0, 0))
            kinds[kind] = (old[0] + tally["bytes"], old[1] + tally["count"])
    equal([tuple(map(str, row[:3])) for row in rows], [(kind, str(bytes), str(count)) for kind, (bytes, count) in kinds.items()], "blocks")
    rows = both("SELECT kind, sum(count) FROM sites WHERE job = 'leaky' AND level = 'object' GROUP BY kind")
    objects = {row["kind"]: row["count"] for row in answer("report", FOLDER / "leaky.json", "--view", "objects")["objects"]["kinds"]} if rows else {}
    assert all(objects.get(kind) == int(count) for kind, count in rows), (rows, objects)


def a_second_export_replaces_the_rows_of_the_first():
    counts = lambda: [both(f"SELECT count(*) FROM {table}") for table in TABLES]
    before = counts()
    export(FOLDER / "job", "--job", "job")
    export(next((FOLDER / "calm").glob("*.culeak")), "--job", "calm")
    assert counts() == before, (counts(), before)


def hostile_names_are_values_and_no_paths():
    snapshot = json.loads((FOLDER / "build1.json").read_text())
    names = ["../../culeak-escaped", "a=b/c", "..", "null", "NULL", "__HIVE_DEFAULT_PARTITION__", "it's \"100%\"", "007", "Z *?[", "%41", "-x; DROP"]
    dataset = FOLDER / "it's [hostile]"
    for number, name in enumerate(names):
        one = copy.deepcopy(snapshot)
        one["process"]["host"] = name
        one["process"]["pid"] = 100 + number
        path = FOLDER / "hostile.json"
        path.write_text(json.dumps(one))
        for _ in range(2):
            export(path, f"--job={name}", to=dataset)
    rows = both("SELECT job, host, count(*) FROM processes GROUP BY job, host", dataset)
    equal(rows, [(name, name, 1) for name in names], "names")
    assert not list(FOLDER.rglob("culeak-escaped*")) and not (FOLDER.parent / "culeak-escaped").exists()
    assert sum(path.name != "empty.parquet" for path in (dataset / "processes").rglob("*.parquet")) == len(names)
    # Spark takes each escaped byte of a folder's name for a character.
    export(path, "--job=Zürich", to=FOLDER / "umlaut")
    assert DuckDb(FOLDER / "umlaut").rows("SELECT job FROM processes") == [("Zürich",)]
    assert both("SELECT count(*) FROM processes", FOLDER / "umlaut") == [(1,)]


def files_are_compressed_and_have_statistics():
    path = max((DATASET / "sites").rglob("*.parquet"), key=lambda path: path.stat().st_size)
    metadata = pyarrow.parquet.read_metadata(path)
    names = [metadata.schema.column(number).name for number in range(metadata.num_columns)]
    column = metadata.row_group(0).column(names.index("site"))
    assert column.compression == "ZSTD" and column.statistics.min <= column.statistics.max
    table = pyarrow.parquet.read_table(DATASET / "processes")
    assert set(table.column("job").to_pylist()) >= {"job", "calm", "runs"}


def a_running_job_is_collected_until_it_ends():
    dataset, runs = FOLDER / "collected", FOLDER / "running"
    runs.mkdir()
    words = [CULEAK, "watch", str(runs), "--dataset", str(dataset), "--job", "live", "--every", "200ms"]
    counted = lambda: both("SELECT count(*), count(DISTINCT process) FROM points WHERE point = 'now'", dataset)[0]

    def until(wanted, what):
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            if (dataset / "culeak-dataset.json").exists() and wanted(duck_points()):
                return
            time.sleep(0.1)
        raise AssertionError(what)

    def duck_points():
        try:
            return DuckDb(dataset).rows("SELECT count(*) FROM points WHERE point = 'now'")[0][0]
        except duckdb.Error:
            # A file was replaced meanwhile.
            return 0

    job = [CULEAK, "run", "-o", str(runs), "--", sys.executable, str(HERE / "worker.py"), "3", "wait"]
    # The collector starts before the job, and is stopped and started again.
    first = subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    worker = subprocess.Popen(job, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        worker.stdout.readline()
        until(lambda points: points >= 2, "no points")
        first.send_signal(signal.SIGTERM)
        message = first.communicate(timeout=LIMIT_S)[1]
        assert first.returncode == 0 and "SIGTERM: stopped" in message, message
        before = duck_points()
        first = subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        worker.stdin.write("\n")
        worker.stdin.flush()
        worker.stdout.readline()
        until(lambda points: points >= before + 2, "no points after the restart")
        # Killed in any place, it goes on as well.
        first.kill()
        first.communicate()
        first = subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        worker.stdin.write("\n\n")
        worker.stdin.close()
        worker.wait(timeout=LIMIT_S)
        message = first.communicate(timeout=LIMIT_S)[1]
        assert first.returncode == 0 and "the job has ended" in message, message
    finally:
        first.kill()
        worker.kill()
    rows = both("SELECT state, finished, held_bytes, point FROM processes", dataset)
    assert rows == [("exited", True, (64 + 1 + 9) << 20, "end")], rows
    assert counted()[1] == 1 and counted()[0] >= 4
    doubled = both("SELECT process, point, at_unix_ns, site, kind, count(*) FROM sites GROUP BY process, point, at_unix_ns, site, kind HAVING count(*) > 1", dataset)
    assert doubled == [], doubled
    totals = both("SELECT p.at_unix_ns FROM points p JOIN (SELECT process, point, at_unix_ns, sum(bytes) AS bytes FROM sites WHERE level = 'held' GROUP BY process, point, at_unix_ns) s ON s.process = p.process AND s.point = p.point AND s.at_unix_ns = p.at_unix_ns WHERE s.bytes <> p.held_bytes", dataset)
    assert totals == [], totals
    # The line of docs/fleet.md puts small files together.
    [line] = [line for line in (HERE.parent.parent / "docs/fleet.md").read_text().splitlines() if "COPY (FROM sites" in line]
    copy_sites = line.split(' -c "')[1].strip('"').replace("train-7", "live").replace("archive", str(FOLDER / "archive"))
    (FOLDER / "archive").mkdir()
    before = DuckDb(dataset).rows("SELECT count(*), sum(bytes) FROM sites")
    DuckDb(dataset).execute(copy_sites)
    archived = duckdb.connect().execute(f"SELECT count(*), sum(bytes) FROM '{FOLDER}/archive/sites/*/*.parquet'").fetchall()
    assert archived == before, (archived, before)


def wrong_use_is_explained():
    other = FOLDER / "other"
    other.mkdir()
    (other / "notes").write_text("")
    assert "other files (notes)" in export(FOLDER / "calm", to=other, code=2).stderr
    assert "--at peak exclude each other" in export(FOLDER / "calm", "--at", "peak", to=FOLDER / "y", code=2).stderr
    (FOLDER / "broken.culeak").write_text("nonsense")
    message = export(FOLDER / "broken.culeak", FOLDER / "build1.json", to=FOLDER / "with-broken", code=2).stderr
    assert "broken.culeak" in message
    assert both("SELECT count(*) FROM processes", FOLDER / "with-broken") == [(1,)]


def a_full_disk_leaves_whole_files():
    if os.geteuid() != 0:
        raise SystemExit("claims.py: mounting a small file system needs root")
    small = FOLDER / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small], check=True)
    try:
        dataset = small / "dataset"
        export(FOLDER / "build1.json", "--job", "one", to=dataset)
        query = "SELECT job, held_bytes FROM processes WHERE job <> 'two'"
        rows = both(query, dataset)
        ballast = small / "ballast"
        free = os.statvfs(small)
        ballast.write_bytes(bytes((free.f_bavail - 12) * free.f_frsize))
        message = export(FOLDER / "job", "--job", "two", to=dataset, code=2).stderr
        ballast.unlink()
        assert "No space" in message, message
        assert both(query, dataset) == rows
        # A process whose row is there is complete.
        torn = "SELECT p.process FROM processes p WHERE p.held_bytes <> (SELECT sum(s.bytes) FROM sites s WHERE s.process = p.process AND s.level = 'held' AND s.point = p.point)"
        assert both(torn, dataset) == []
        assert not list(dataset.rglob(".culeak-*")), list(dataset.rglob(".culeak-*"))
        export(FOLDER / "build2.json", "--job", "three", to=dataset)
        assert len(both(query, dataset)) == 2
    finally:
        subprocess.run(["umount", small], check=True)


def the_notebook_runs():
    import nbclient
    import nbformat
    import traitlets.config

    notebook = nbformat.read(HERE.parent.parent / "docs/example/dataset.ipynb", as_version=4)
    for cell in notebook.cells:
        assert not cell.get("outputs"), "the notebook is kept without outputs"
    if "WITH_SPARK" not in os.environ:
        notebook.cells = [cell for cell in notebook.cells if "pyspark" not in cell.source]
    os.environ.update(CULEAK=CULEAK, CULEAK_DATASET=str(DATASET))
    # Through sockets in a folder: TCP ports that are free now may be another program's once the kernel has started.
    config = traitlets.config.Config({"KernelManager": {"transport": "ipc"}})
    nbclient.NotebookClient(notebook, timeout=LIMIT_S, startup_timeout=LIMIT_S, kernel_name="python3", config=config).execute()
    shown = json.dumps(notebook)
    assert "train.py" in shown and '"rank": 17' in shown.replace("\\", "") or "17" in shown


def prepare():
    """Real recordings, snapshots of two builds, and nine days of one process."""
    for _ in range(2):
        culeak("run", "-o", FOLDER / "runs", "--", sys.executable, HERE / "worker.py", 2)
    one = sorted((FOLDER / "runs").glob("*.culeak"))[0]
    source = (HERE / "worker.py").read_text()
    moved = source.replace("def step", "# Moved.\n\ndef step").replace("3 << 20", "5 << 20").replace("def keep", "def hold").replace("keep()", "hold()")
    (FOLDER / "second").mkdir()
    (FOLDER / "second" / "worker.py").write_text(moved)
    culeak("run", "-o", FOLDER / "second", "--", sys.executable, FOLDER / "second" / "worker.py", 3)
    other = next((FOLDER / "second").glob("*.culeak"))
    for path, name in [(one, "build1"), (other, "build2")]:
        culeak("snapshot", path, "-o", FOLDER / f"{name}.json")
        export(FOLDER / f"{name}.json", "--job", name)
    growing = json.loads((FOLDER / "build1.json").read_text())
    growing["process"]["state"] = "running"
    growing.pop("end", None)
    growing["taken"].pop("point", None)
    (FOLDER / "days").mkdir()
    columns = growing["allocations"]["columns"] if "columns" in growing["allocations"] else None
    for day in range(9):
        snapshot = copy.deepcopy(growing)
        snapshot["taken"]["at_ns"] = growing["taken"]["at_ns"] + day * DAY + day % 3 * 1_234_567_891
        snapshot["taken"]["at_unix_ns"] = growing["taken"]["at_unix_ns"] + day * DAY
        rows = snapshot["allocations"]["rows"]
        at = columns.index("bytes")
        # The first row of the list grows, and the last one begins on the third day.
        rows[0][at] += day * (7 << 20) + day % 2 * 12345
        if day < 2:
            rows.pop()
        (FOLDER / "days" / f"{day}.json").write_text(json.dumps(snapshot))
    export(FOLDER / "days", "--job", "days")
    export(FOLDER / "runs", "--job", "runs")
    export(FOLDER / "job", "--job", "job")
    export(FOLDER / "calm", "--job", "calm")


def main():
    chosen = sys.argv[3:]
    prepare()
    claims = [value for name, value in globals().items() if callable(value) and "_" in name and value.__module__ == "__main__"]
    for claim in claims:
        if chosen and claim.__name__ not in chosen:
            continue
        began = time.monotonic()
        claim()
        print(f"ok      {claim.__name__.replace('_', ' ')}  ({time.monotonic() - began:.1f} s)", flush=True)


main()
