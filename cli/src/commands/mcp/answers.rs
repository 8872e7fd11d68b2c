//! Answers that are cut: whole lines, as many as fit, and a handle for the rest.

use std::collections::VecDeque;

/// The most bytes of an answer, as JSON.
pub const MOST: usize = 2_900;
/// Room for the line with the handle.
const LAST_LINE: usize = 100;
/// Rests that are kept; the oldest is forgotten first.
const RESTS: usize = 16;

#[derive(Default)]
pub struct Answers {
    rests: VecDeque<(String, String)>,
    numbered: u64,
}

impl Answers {
    /// The text, or its first lines and the handle of the others.
    pub fn cut(&mut self, text: &str) -> String {
        let text = text.trim_end();
        if size(text) <= MOST {
            return text.to_owned();
        }
        let mut end = 0;
        let mut left = MOST - LAST_LINE;
        for line in text.split_inclusive('\n') {
            let Some(less) = left.checked_sub(size(line)) else {
                break;
            };
            (left, end) = (less, end + line.len());
        }
        if end == 0 {
            // A line that is longer than an answer is cut within.
            let mut room = MOST - LAST_LINE;
            let fits = |c: &char| {
                let size = size(c.encode_utf8(&mut [0; 4]));
                room.checked_sub(size).inspect(|left| room = *left).is_some()
            };
            end = text.chars().take_while(fits).map(char::len_utf8).sum();
        }
        self.numbered += 1;
        let (handle, rest) = (format!("m{}", self.numbered), &text[end..]);
        let first = text[..end].trim_end();
        let answer = format!(
            "{first}\n… and {} more lines: more {{\"handle\": \"{handle}\"}}",
            rest.lines().count()
        );
        if self.rests.len() == RESTS {
            self.rests.pop_front();
        }
        self.rests.push_back((handle, rest.to_owned()));
        answer
    }

    /// The rest of an answer, unless it was forgotten.
    pub fn rest(&self, handle: &str) -> Option<&str> {
        let rest = self.rests.iter().find(|(known, _)| known == handle);
        rest.map(|(_, rest)| rest.as_str())
    }
}

/// The bytes of a text in JSON, without its quotes.
fn size(text: &str) -> usize {
    serde_json::Value::from(text).to_string().len() - 2
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_parts_of_an_answer_are_the_whole_and_each_is_small(
            lines in prop::collection::vec("\\PC{0,300}|[\"\\\\\u{1}-\u{1f}]{0,900}|é{0,1700}", 0..12)
        ) {
            let whole = lines.join("\n");
            let (mut answers, mut parts) = (Answers::default(), String::new());
            let mut next = answers.cut(&whole);
            loop {
                prop_assert!(size(&next) <= MOST, "{}", size(&next));
                let Some((part, last)) = next.rsplit_once("\n… and ") else {
                    parts += &next;
                    break;
                };
                parts += part;
                let handle = last.split('"').nth(3).expect("a handle").to_owned();
                let rest = answers.rest(&handle).expect("the handle is known").to_owned();
                next = answers.cut(&rest);
            }
            let bare = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(bare(&parts), bare(&whole));
        }
    }

    #[test]
    fn an_old_rest_is_forgotten() {
        let mut answers = Answers::default();
        for _ in 0..=RESTS {
            answers.cut(&"line\n".repeat(1000));
        }
        assert_eq!(answers.rest("m1"), None);
        assert!(answers.rest("m2").is_some_and(|rest| rest.starts_with("line\n")));
    }
}
