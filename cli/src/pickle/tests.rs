use super::write::{Pickler, Sort};
use super::*;
use proptest::prelude::*;

/// The value of a pickle, as Python would print it.
fn shown(input: &[u8]) -> Result<String, Error> {
    fn show(pickle: &Pickle, id: Id, depth: usize) -> String {
        if depth > 8 {
            return "…".to_owned();
        }
        let all = |items: &[Id]| {
            items
                .iter()
                .map(|&id| show(pickle, id, depth + 1))
                .collect::<Vec<_>>()
                .join(", ")
        };
        match pickle.value(id) {
            Value::List(items) => format!("[{}]", all(items)),
            Value::Tuple(items) => format!("({})", all(items)),
            Value::Dictionary(entries) => {
                let pair = |(key, value): &(Id, Id)| {
                    format!("{}: {}", show(pickle, *key, depth + 1), show(pickle, *value, depth + 1))
                };
                format!("{{{}}}", entries.iter().map(pair).collect::<Vec<_>>().join(", "))
            }
            Value::Integer(number) => number.to_string(),
            Value::Text(text) => format!("{text:?}"),
            other => format!("{other:?}"),
        }
    }
    read(input).map(|pickle| show(&pickle, pickle.root(), 0))
}

#[test]
fn pickles_of_python_are_read() {
    // pickle.dumps({"a": [1, -2, 300, 70000, 1 << 40], "b": (True, None, 1.5), "c": "a"}) in protocols 2 and 4.
    let two = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01eX\x01\x00\x00\x00bq\x03\x88NG?\xf8\x00\x00\x00\x00\x00\x00\x87q\x04X\x01\x00\x00\x00cq\x05h\x01u.";
    let four = b"\x80\x04\x95=\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01e\x8c\x01b\x94\x88NG?\xf8\x00\x00\x00\x00\x00\x00\x87\x94\x8c\x01c\x94h\x01u.";
    let wanted = r#"{"a": [1, -2, 300, 70000, 1099511627776], "b": (Bool(true), None, Float(1.5)), "c": "a"}"#;
    assert_eq!(shown(two).as_deref(), Ok(wanted));
    assert_eq!(shown(four).as_deref(), Ok(wanted));
}

#[test]
fn instructions_that_run_code_are_refused_by_name() {
    // `os.system` in every encoding.
    for (input, what) in [
        (&b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R."[..], "import"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.", "import"),
        (b"\x80\x02(ios\nsystem\n.", "import"),
        (b"\x80\x02K\x01K\x02\x85R.", "call"),
        (b"\x80\x02}}b.", "set up"),
        (b"\x80\x02Pxyz\n.", "fetch"),
        (b"\x80\x02\x82\x01.", "registered"),
    ] {
        let error = read(input).expect_err("refused").to_string();
        assert!(error.contains(what) && error.contains("nothing was run"), "{error}");
    }
}

#[test]
fn damage_is_reported_with_its_position() {
    for (input, error) in [
        (&b""[..], Error::Ends),
        (b"\x80\x02", Error::Ends),
        (b"\x80\x02X\xff\xff\xff\xffabc", Error::Ends),
        (b"\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc", Error::Ends),
        (b"\x80\x09.", Error::Protocol(9)),
        (b"\x80\x02.", Error::Damaged { at: 2 }),
        (b"\x80\x02K\x01a.", Error::Damaged { at: 4 }),
        (b"\x80\x02h\x05.", Error::Damaged { at: 3 }),
        (b"\x80\x02e.", Error::Damaged { at: 2 }),
        (b"\x80\x02}(K\x01u.", Error::Damaged { at: 6 }),
        (b"\x80\x02]K\x01(a.", Error::Damaged { at: 6 }),
        (
            b"\x80\x02\xff.",
            Error::Unknown {
                instruction: 0xff,
                at: 2,
            },
        ),
    ] {
        assert_eq!(read(input).err(), Some(error), "{input:?}");
    }
}

#[test]
fn a_list_may_contain_itself() {
    let pickle = read(b"\x80\x02]q\x00h\x00a.").expect("read");
    assert_eq!(pickle.items(pickle.root()), Some(&[pickle.root()][..]));
}

#[test]
fn a_list_doubled_a_hundred_times_is_a_hundred_lists() {
    let mut bomb = b"\x80\x02]".to_vec();
    for _ in 0..100 {
        // Twice the same list in a new one.
        bomb.extend(b"q\x000]h\x00ah\x00a");
    }
    bomb.push(b'.');
    let pickle = read(&bomb).expect("read");
    assert_eq!(pickle.values.len(), 101);
}

#[test]
fn written_pickles_are_read_back() {
    let mut out = Vec::new();
    let mut pickler = Pickler::new(&mut out);
    let numbers = [
        0,
        255,
        256,
        65_535,
        1 << 31,
        u64::from(u32::MAX),
        i64::MAX as u64,
        u64::MAX,
    ];
    let twice = [1, 2];
    let number = |pickler: &mut Pickler, number: u64| {
        pickler.number(number);
        Ok(())
    };
    let write = |pickler: &mut Pickler| {
        pickler.begin();
        pickler.word("numbers")?;
        pickler.list(numbers.into_iter(), number)?;
        for name in ["first", "second"] {
            pickler.text(name)?;
            pickler.shared(Sort::Frames, 7, |pickler| pickler.list(twice.into_iter(), number))?;
        }
        pickler.text_entry("numbers", "numbers")?;
        pickler.word("pair")?;
        pickler.pair(1, 2);
        pickler.word("many")?;
        pickler.list(0..2_001, |pickler, _| number(pickler, 1))?;
        pickler.end();
        Ok::<_, std::io::Error>(())
    };
    write(&mut pickler).expect("written");
    pickler.finish().expect("written");
    let many = ["1"; 2_001].join(", ");
    let listed = numbers.map(|number| number.to_string()).join(", ");
    assert_eq!(
        shown(&out),
        Ok(format!(
            r#"{{"numbers": [{listed}], "first": [1, 2], "second": [1, 2], "numbers": "numbers", "pair": (1, 2), "many": [{many}]}}"#
        ))
    );
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&[b"\x80\x04".as_slice(), &bytes].concat());
    }

    #[test]
    fn any_instructions_are_read_or_refused(
        instructions in proptest::collection::vec(
            proptest::sample::select(b"(](}K\x01Naeut.sqh\x02\x85\x86\x87\x94012ld)".to_vec()), 0..80),
    ) {
        let _ = shown(&[b"\x80\x04".as_slice(), &instructions].concat());
    }
}
