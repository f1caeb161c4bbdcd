//! Characters that a reader does not see as what they are, and that a terminal may obey.

/// Returns true for a character that a terminal or a reader may take for something else: control characters (C0, DEL, C1),
/// marks that change the direction of the text after them, and characters without any width. The tab and the end of a line
/// count as control characters here.
#[must_use]
pub const fn is_hidden(character: char) -> bool {
    matches!(
        character,
        '\0'..='\u{1f}'
            | '\u{7f}'..='\u{9f}'
            // Arabic letter mark, Mongolian vowel separator.
            | '\u{61c}'
            | '\u{180e}'
            // Zero width, and left-to-right and right-to-left marks.
            | '\u{200b}'..='\u{200f}'
            // Line and paragraph separator, embeddings and overrides.
            | '\u{2028}'..='\u{202e}'
            // Invisible operators, isolates, deprecated formats.
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            // Tags.
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// Hidden character as it can be shown: `\x1b`, `\u{202e}`.
#[must_use]
pub fn spelled(character: char) -> String {
    match u32::from(character) {
        code @ ..=0xff => format!("\\x{code:02x}"),
        code => format!("\\u{{{code:x}}}"),
    }
}

/// Checks that a short text of one line has no hidden characters.
///
/// # Errors
/// Names the character.
pub fn check_line(text: &str) -> Result<(), HiddenCharacter> {
    text.chars().find(|character| is_hidden(*character)).map_or(Ok(()), |found| Err(HiddenCharacter(found)))
}

/// Hidden character in a text that must not have any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("control characters and characters that cannot be seen are not allowed, and it has {}", spelled(*.0))]
pub struct HiddenCharacter(pub char);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_refused_and_named() {
        for hidden in [
            '\u{1b}',
            '\n',
            '\t',
            '\u{7f}',
            '\u{9b}',
            '\u{202e}',
            '\u{2066}',
            '\u{200b}',
            '\u{61c}',
            '\u{feff}',
            '\u{e0041}',
        ] {
            assert_eq!(check_line(&format!("a{hidden}b")), Err(HiddenCharacter(hidden)));
        }
        for good in ["", "größer", "日本語", "a b", "🦀", "שלום", "é"] {
            assert_eq!(check_line(good), Ok(()), "{good}");
        }
        assert_eq!((spelled('\u{1b}').as_str(), spelled('\u{202e}').as_str()), ("\\x1b", "\\u{202e}"));
        let error = HiddenCharacter('\u{9b}').to_string();
        assert!(error.ends_with("it has \\x9b"), "{error}");
    }
}
