"""Servers that play receivers, well-behaved and not; and the start of culeak. Used by claims.py and victoria_metrics.py."""

import contextlib
import gzip
import http.server
import json
import os
import pathlib
import socket
import ssl
import subprocess
import sys
import threading

CULEAK, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
# Against hangs alone.
LIMIT = 300


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if "PROXY" not in name.upper() and not name.startswith(("OTEL_", "SSL_CERT"))}
    return kept | {"CULEAK_CACHE_DIR": str(FOLDER / "cache")} | more


def culeak(*words, env=None, code=0):
    """Runs culeak to its end and returns standard output and standard error as text."""
    command = [CULEAK, *map(str, words)]
    done = subprocess.run(command, env=env or environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT)
    assert done.returncode == code, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def start(*words, env=None):
    return subprocess.Popen([CULEAK, *map(str, words)], env=env or environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end_of(process, code=0):
    try:
        output, _ = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == code, (process.returncode, output)
    return output


def report(recording):
    return json.loads(culeak("report", recording, "--json", env=environment()))


class Request:
    def __init__(self, handler, body):
        self.path, self.headers, self.body = handler.path, handler.headers, body

    @property
    def plain(self):
        return gzip.decompress(self.body) if self.headers["content-encoding"] == "gzip" else self.body


class Server:
    """Answers each request with the next of `answers`, then with success. An answer is a status, or a tuple of status, headers and
    body, or a function that is called with the handler."""

    def __init__(self, *answers, tls=None, port=0):
        self.requests, self.answers, self.changed = [], list(answers), threading.Condition()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                with outer.changed:
                    outer.requests.append(Request(self, body))
                    answer = outer.answers.pop(0) if outer.answers else 200
                    outer.changed.notify_all()
                if callable(answer):
                    self.close_connection = True
                    return answer(self)
                status, headers, text = answer if isinstance(answer, tuple) else (answer, {}, b"")
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        class Quiet(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self.server = Quiet(("127.0.0.1", port), Handler)
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self.server.server_address[1]
        self.url = f"{'https' if tls else 'http'}://localhost:{self.port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def wait_for(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.requests) >= count, LIMIT), len(self.requests)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


@contextlib.contextmanager
def raw(talk):
    """A server that talks to each connection by itself; yields its port and the list of connections."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections = []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections.append(connection)

                def one(connection=connection):
                    with contextlib.suppress(OSError):
                        talk(connection)

                threading.Thread(target=one, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1], connections
    finally:
        listener.close()
        for connection in connections:
            connection.close()


def context(authority, *names):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(tls)
    return tls


def run(claims):
    """Runs every claim: a function of the module without underscore whose name is a sentence."""
    for claim in claims:
        try:
            claim()
        except BaseException:
            print(f"FAILED  {claim.__name__}", flush=True)
            raise
        print(f"ok      {claim.__name__.replace('_', ' ')}", flush=True)
