//! Claims about what answers mean. Servers that misbehave are in `tests/push`.

use super::*;

fn client(protocol: Protocol) -> Client {
    let target = Target::parse("http://127.0.0.1:9", protocol).expect("a URL");
    let connection = Connection {
        timeout: Duration::from_secs(30),
        ..Connection::default()
    };
    Client::new(target, protocol, connection).expect("a client")
}

fn answer(protocol: Protocol, status: u16, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut response = ureq::http::Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    let body = Body::builder().data(body.to_vec());
    client(protocol).judge(response.body(body).expect("a response"))
}

fn why(answer: Answer) -> String {
    match answer {
        Answer::Accepted { note } => note.unwrap_or_default(),
        Answer::Refused { why } | Answer::Failed { why } | Answer::Busy { why, .. } | Answer::Blocked { why } => why,
    }
}

const PROTOBUF: (&str, &str) = ("content-type", "application/x-protobuf");

#[test]
fn statuses_mean_what_the_protocols_say() {
    use Protocol::{OtlpMetrics, Pyroscope};
    let of = |protocol, status| answer(protocol, status, &[], b"");
    for status in [200, 202, 204] {
        assert_eq!(of(OtlpMetrics, status), Answer::Accepted { note: None });
        assert_eq!(of(Pyroscope, status), Answer::Accepted { note: None });
    }
    for status in [408, 429, 502, 503, 504] {
        assert!(
            matches!(of(OtlpMetrics, status), Answer::Busy { wait: None, .. }),
            "{status}"
        );
        assert!(
            matches!(of(Pyroscope, status), Answer::Busy { wait: None, .. }),
            "{status}"
        );
    }
    for status in [400, 411, 413, 415, 422] {
        assert!(matches!(of(OtlpMetrics, status), Answer::Refused { .. }), "{status}");
        assert!(matches!(of(Pyroscope, status), Answer::Refused { .. }), "{status}");
    }
    for status in [301, 302, 307, 308, 401, 403, 404, 405, 407] {
        assert!(matches!(of(OtlpMetrics, status), Answer::Blocked { .. }), "{status}");
    }
    assert!(
        matches!(of(OtlpMetrics, 500), Answer::Refused { .. }),
        "OTLP forbids another attempt"
    );
    assert!(matches!(of(Pyroscope, 500), Answer::Failed { .. }));
}

#[test]
fn the_time_that_a_server_asks_for_counts() {
    let asked = answer(Protocol::Pyroscope, 503, &[("retry-after", "12")], b"");
    assert!(matches!(asked, Answer::Busy { wait: Some(wait), .. } if wait.as_secs() == 12));
    let nonsense = answer(Protocol::Pyroscope, 503, &[("retry-after", "later")], b"");
    assert!(matches!(nonsense, Answer::Busy { wait: None, .. }));
}

#[test]
fn errors_repeat_what_the_server_says() {
    let status = Status {
        code: 3,
        message: "no such\nthing".to_owned(),
    };
    let said = why(answer(Protocol::OtlpMetrics, 400, &[PROTOBUF], &status.encode_to_vec()));
    assert!(said.ends_with("400 Bad Request: no such thing"), "{said}");
    let json = ("content-type", "application/json; charset=utf-8");
    let said = why(answer(
        Protocol::Pyroscope,
        400,
        &[json],
        br#"{"code":"invalid_argument","message":"no labels"}"#,
    ));
    assert!(said.ends_with("no labels"), "{said}");
    let said = why(answer(
        Protocol::Pyroscope,
        400,
        &[],
        "a\u{1b}[31m".repeat(10_000).as_bytes(),
    ));
    assert!(said.chars().count() < 400 && !said.contains('\u{1b}'), "{said}");
    let page = why(answer(
        Protocol::Pyroscope,
        502,
        &[("content-type", "text/html")],
        b"<html>",
    ));
    assert!(!page.contains('<'), "{page}");
}

#[test]
fn partial_success_is_not_sent_again() {
    let partial = |rejected, message: &str| ExportResponse {
        partial_success: Some(crate::messages::otlp::PartialSuccess {
            rejected,
            error_message: message.to_owned(),
        }),
    };
    let of = |response: ExportResponse| answer(Protocol::OtlpMetrics, 200, &[PROTOBUF], &response.encode_to_vec());
    assert!(matches!(of(partial(3, "old")), Answer::Refused { why } if why.contains("3 items rejected: old")));
    assert!(matches!(of(partial(0, "slow")), Answer::Accepted { note: Some(note) } if note.ends_with("slow")));
    assert_eq!(of(ExportResponse::default()), Answer::Accepted { note: None });
}

#[test]
fn what_another_service_answers_is_not_taken_for_success() {
    let page = answer(
        Protocol::Pyroscope,
        200,
        &[("content-type", "text/html")],
        b"<html>Please log in</html>",
    );
    assert!(matches!(page, Answer::Blocked { .. }));
    let garbage = answer(Protocol::OtlpMetrics, 200, &[PROTOBUF], b"\xff\xff\xff");
    assert!(matches!(garbage, Answer::Blocked { .. }));
    let huge = answer(Protocol::OtlpMetrics, 200, &[], &vec![0; LARGEST_ANSWER as usize + 2]);
    assert!(matches!(huge, Answer::Refused { .. }));
}

#[test]
fn a_redirect_is_shown_without_secrets() {
    let to = [("location", "https://me:hunter2@other.example/x?token=hunter2")];
    let why = why(answer(Protocol::Pyroscope, 308, &to, b""));
    assert!(
        why.contains("to https://other.example/x;") && !why.contains("hunter2"),
        "{why}"
    );
}

#[test]
fn secrets_do_not_leave_for_everyone_to_read() {
    let credentials = Credentials {
        token: Some(crate::target::Source::Variable("PATH".to_owned())),
        ..Credentials::default()
    };
    let open = |url, plain_credentials| {
        let connection = Connection {
            credentials: credentials.clone(),
            plain_credentials,
            ..Connection::default()
        };
        Client::new(
            Target::parse(url, Protocol::Pyroscope).expect("a URL"),
            Protocol::Pyroscope,
            connection,
        )
    };
    let refused = open("http://example.com", false).expect_err("refused");
    assert!(refused.contains("--allow-plain-credentials"), "{refused}");
    open("http://example.com", true).expect("allowed");
    open("http://127.0.0.1", false).expect("this machine");
}

#[test]
fn a_secret_that_a_server_repeats_is_hidden_wherever_the_text_is_cut() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("token");
    let token = "abcdefgh".repeat(125);
    std::fs::write(&path, &token).expect("written");
    let connection = Connection {
        credentials: Credentials {
            token: Some(crate::target::Source::File(path)),
            ..Credentials::default()
        },
        timeout: Duration::from_secs(1),
        ..Connection::default()
    };
    let target = Target::parse("http://127.0.0.1:9", Protocol::Pyroscope).expect("a URL");
    let client = Client::new(target, Protocol::Pyroscope, connection).expect("a client");
    for spaces in [0, 96, 190] {
        let body = format!("{}{}", " x".repeat(spaces / 2), token.repeat(20));
        let response = ureq::http::Response::builder().status(400);
        let response = response
            .body(Body::builder().data(body.into_bytes()))
            .expect("a response");
        let why = why(client.judge(response));
        assert!(why.contains("***") && !why.contains("abc"), "{why}");
    }
}

#[test]
fn nobody_listening_is_tried_again() {
    let client = client(Protocol::OtlpMetrics);
    let request = Request {
        protocol: Protocol::OtlpMetrics,
        subject: String::new(),
        gzipped: true,
        body: Vec::new(),
    };
    let Answer::Busy { why, .. } = client.attempt(&request) else {
        panic!()
    };
    assert!(why.contains("Connection refused"), "{why}");
}
