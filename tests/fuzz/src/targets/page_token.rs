//! Page tokens: bound to whom they were given, and to what for.

use storage::fuzzing::{page_cursor, page_place, page_token};

use super::with_another_character;
use crate::input::{Input, join};
use crate::{Target, Verdict, check_refusal};

/// The reader of page tokens.
pub const TARGET: Target = Target { name: "page_token", run, seeds, dictionary: DICTIONARY };

const SECRET: &str = "the-secret-of-this-coordinator";
const DICTIONARY: &[&str] =
    &["Ag", "AAAAAAAAAAA", "==", "-_", "+/", " ", "actor 1", "status=", "\0\0\0\0\0\0\0\u{7}"];

fn run(data: &[u8]) -> Verdict {
    let mut input = Input::new(data);
    let way = input.choice(4);
    let number = input.number();
    if way == 0 {
        let (token, filter) = (input.text(), input.text());
        return Verdict::of(&read(&token, &filter));
    }
    let (place, filter, other) = (input.text(), input.text(), input.text());
    let token = page_token(SECRET, &filter, &place);
    let read_again = read(&token, &filter);
    assert_eq!(read_again, Ok(Some(place.clone().into_owned())), "it is not for its own place");
    let changed = with_another_character(&token, number);
    assert!(read(&changed, &filter).is_err(), "{changed} is no other spelling of {token}");
    assert!(page_place(&token, "the-secret-of-another", &filter).is_err(), "another's is taken");
    if way == 1 || filter == other {
        return Verdict::Accepted;
    }
    let other = read(&token, &other);
    assert!(other.is_err(), "it is taken for another filter");
    Verdict::of(&other)
}

fn read(token: &str, filter: &str) -> Result<Option<String>, ()> {
    let refused = |text: String| check_refusal(&text, 200, &[SECRET]);
    let place = page_place(token, SECRET, filter).map_err(refused)?;
    if let Ok(Some(cursor)) = page_cursor(token, SECRET, filter) {
        let bytes = place.as_ref().map(String::as_bytes).unwrap_or_default();
        assert_eq!(bytes, cursor.to_be_bytes(), "one place is two");
    }
    match &place {
        None => assert!(token.is_empty(), "{token} is no first page"),
        Some(place) => assert_eq!(page_token(SECRET, filter, place), token, "two tokens for one place"),
    }
    Ok(place)
}

fn seeds() -> Vec<Vec<u8>> {
    let token = page_token(SECRET, "actor 1", "\0\0\0\0\0\0\0\u{7}");
    vec![
        join(&[0, 0, 0], &["", "actor 1"]),
        join(&[0, 0, 0], &[token.as_str(), "actor 1"]),
        join(&[0, 0, 0], &[token.as_str(), "actor 2"]),
        join(&[1, 0, 3], &["1800000000000-0", "", ""]),
        join(&[2, 1, 9], &["\0\0\0\0\0\0\0\u{7}", "actor 1", "actor 2"]),
        join(&[3, 0, 30], &["a", "b c", "b  c"]),
    ]
}
