# The Python workers of Spark: docs/launchers.md.

start_spark_around() {
    local culeak_run=()
    [ "$1" = bare ] || culeak_run=("$culeak" run -o "$runs" --)
    ${culeak_run[@]+"${culeak_run[@]}"} "$venv/bin/spark-submit" "$here/spark_job.py" "$2" "${rank[@]:3}"
}

start_spark_conf() {
    local conf=()
    [ "$1" = bare ] || conf=(--conf "spark.executorEnv.LD_PRELOAD=$shim" --conf "spark.executorEnv.CULEAK_OUTPUT=$runs/")
    "$venv/bin/spark-submit" ${conf[@]+"${conf[@]}"} "$here/spark_job.py" "$2" "${rank[@]:3}"
}

claims_of_spark() {
    need java openjdk-17-jre-headless
    venv spark pyspark pyspark
    export PYSPARK_PYTHON=$venv/bin/python SPARK_LOCAL_IP=127.0.0.1 SPARK_LOCAL_DIRS=$work/spark
    compare "spark-submit with spark.executorEnv" start_spark_conf 2 1 good
    compare "culeak run -- spark-submit" start_spark_around 2 1 good fails
    unset PYSPARK_PYTHON SPARK_LOCAL_IP SPARK_LOCAL_DIRS
}
