//! Wildcards for names: `*` matches any text, the empty text too, and `?` matches one character.
//!
//! The preload library (`CULEAK_ONLY`) and the command line (`--only`) share this matcher, so it works on bytes and
//! needs no heap. Only the last `*` is ever retried: an earlier one can always leave the additional text to a later
//! one, so a match takes at most pattern × text steps. Deliberately absent: character classes and an escape character.

/// Whether the pattern matches the whole text.
pub fn matches(mut pattern: &[u8], mut text: &[u8]) -> bool {
    // The pattern after the last star, and the text that it was last tried on.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        (pattern, text) = match (pattern, text) {
            ([b'*', pattern @ ..], _) => {
                retry = Some((pattern, text));
                (pattern, text)
            }
            (_, []) => return pattern.is_empty(),
            ([b'?', pattern @ ..], [_, text @ ..]) => (pattern, from_next_character(text)),
            ([wanted, pattern @ ..], [byte, text @ ..]) if wanted == byte => (pattern, text),
            _ => {
                let Some((pattern, [_, text @ ..])) = retry else {
                    return false;
                };
                retry = Some((pattern, text));
                (pattern, text)
            }
        }
    }
}

/// The text without the rest of a UTF-8 sequence at its start.
fn from_next_character(text: &[u8]) -> &[u8] {
    let continued = text.iter().take_while(|&&byte| byte & 0xc0 == 0x80).count();
    text.get(continued..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::matches;
    use proptest::prelude::*;

    /// The definition, one case a line.
    fn by_definition(pattern: &[char], text: &[char]) -> bool {
        match (pattern, text) {
            ([], []) => true,
            (['*', rest @ ..], _) => (0..=text.len()).any(|skip| by_definition(rest, &text[skip..])),
            (['?', rest @ ..], [_, text @ ..]) => by_definition(rest, text),
            ([wanted, rest @ ..], [c, text @ ..]) => wanted == c && by_definition(rest, text),
            _ => false,
        }
    }

    #[test]
    fn a_star_matches_any_text_and_a_question_mark_one_character() {
        for (pattern, text, expected) in [
            ("train*", "train.py", true),
            ("*.py", "train.py", true),
            ("tr??n.py", "train.py", true),
            ("*ab", "aab", true),
            ("*abb", "aab", false),
            ("*", "", true),
            ("", "a", false),
            ("?", "é", true),
            ("??", "é", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                expected,
                "{pattern} {text}"
            );
        }
    }

    proptest! {
        #[test]
        fn the_matcher_agrees_with_the_definition(pattern in "[ab?*é]{0,8}", text in "[abé]{0,12}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            let expected = by_definition(&chars(&pattern), &chars(&text));
            prop_assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected);
        }
    }
}
