//! Reader of JSON values. Everything ambiguous is refused.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::{DEPTH_MAX, Json};

/// Why bytes are no [`Json`]. Places are bytes, from 0 on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// There are more bytes than the limit.
    #[error("it has {bytes} bytes, at most {most} are read")]
    TooLong {
        /// How many there are.
        bytes: usize,
        /// How many may be.
        most: usize,
    },
    /// The bytes are not valid UTF-8.
    #[error("byte {at} is not UTF-8")]
    NotUtf8 {
        /// The first that is none.
        at: usize,
    },
    /// Something else is expected there.
    #[error("byte {at}: expected {wanted}")]
    Wanted {
        /// Where.
        at: usize,
        /// Description of the expected text.
        wanted: &'static str,
    },
    /// A key occurs twice in one object: readers differ in which one they use.
    #[error("byte {at}: the key {key:?} occurs twice in its object")]
    Twice {
        /// Where the second one ends.
        at: usize,
        /// The key, shortened to 80 characters.
        key: String,
    },
    /// Lists and objects stand too deep within each other.
    #[error("byte {at}: lists and objects are nested more than {DEPTH_MAX} deep")]
    TooDeep {
        /// Where the first one too many begins.
        at: usize,
    },
    /// An escape that is half of a character.
    #[error("byte {at}: this is half of a pair of surrogates")]
    Surrogate {
        /// Where it begins.
        at: usize,
    },
}

/// Reads one value of at most `most` bytes, with nothing but blanks around it.
///
/// # Errors
/// The first thing that is wrong.
pub fn read(bytes: &[u8], most: usize) -> Result<Json, JsonError> {
    if bytes.len() > most {
        return Err(JsonError::TooLong { bytes: bytes.len(), most });
    }
    let text = std::str::from_utf8(bytes).map_err(|error| JsonError::NotUtf8 { at: error.valid_up_to() })?;
    let mut reader = JsonReader { text, at: 0 };
    let value = reader.value(0)?;
    reader.blanks();
    if reader.at < text.len() {
        return Err(reader.wanted("the end"));
    }
    Ok(value)
}

struct JsonReader<'a> {
    text: &'a str,
    at: usize,
}

impl JsonReader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    const fn wanted(&self, wanted: &'static str) -> JsonError {
        JsonError::Wanted { at: self.at, wanted }
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Skips this byte, if it is the next one.
    fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn value(&mut self, depth: usize) -> Result<Json, JsonError> {
        self.blanks();
        match self.peek() {
            Some(b'"') => self.string().map(Json::Text),
            Some(b'{' | b'[') if depth == DEPTH_MAX => Err(JsonError::TooDeep { at: self.at }),
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.list(depth + 1),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true", Json::Bool(true)),
            Some(b'f') => self.word("false", Json::Bool(false)),
            Some(b'n') => self.word("null", Json::Null),
            _ => Err(self.wanted("a value")),
        }
    }

    fn word(&mut self, word: &str, value: Json) -> Result<Json, JsonError> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.wanted("a value"));
        }
        self.at += word.len();
        Ok(value)
    }

    fn list(&mut self, depth: usize) -> Result<Json, JsonError> {
        self.at += 1;
        let mut items = Vec::new();
        self.blanks();
        if self.take(b']') {
            return Ok(Json::List(items));
        }
        loop {
            items.push(self.value(depth)?);
            self.blanks();
            if self.take(b']') {
                return Ok(Json::List(items));
            }
            if !self.take(b',') {
                return Err(self.wanted("`,` or `]`"));
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, JsonError> {
        self.at += 1;
        let mut entries = BTreeMap::new();
        self.blanks();
        if self.take(b'}') {
            return Ok(Json::Map(entries));
        }
        loop {
            self.blanks();
            if self.peek() != Some(b'"') {
                return Err(self.wanted("a key"));
            }
            let key = self.string()?;
            let at = self.at;
            self.blanks();
            if !self.take(b':') {
                return Err(self.wanted("`:`"));
            }
            let value = self.value(depth)?;
            match entries.entry(key) {
                Entry::Vacant(place) => place.insert(value),
                Entry::Occupied(known) => {
                    let key = known.key().chars().take(80).collect();
                    return Err(JsonError::Twice { at, key });
                }
            };
            self.blanks();
            if self.take(b'}') {
                return Ok(Json::Map(entries));
            }
            if !self.take(b',') {
                return Err(self.wanted("`,` or `}`"));
            }
        }
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.wanted("a digit"));
        }
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Json, JsonError> {
        let begin = self.at;
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            let _ = self.take(b'+') || self.take(b'-');
            self.digits()?;
        }
        let digits = &self.text[begin..self.at];
        // `-0` would lose its sign.
        let integer = digits.parse::<i64>().ok().filter(|_| digits != "-0");
        Ok(integer.map_or_else(|| Json::Text(digits.to_owned()), Json::Int))
    }

    fn string(&mut self) -> Result<String, JsonError> {
        self.at += 1;
        let mut text = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.find(|c: char| c == '"' || c == '\\' || c < ' ').unwrap_or(rest.len());
            text.push_str(&rest[..plain]);
            self.at += plain;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text);
                }
                Some(b'\\') => text.push(self.escape()?),
                _ => return Err(self.wanted("`\"`, or a character that is no control character")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, JsonError> {
        let begin = self.at;
        self.at += 1;
        let escaped = self.peek();
        self.at += 1;
        Ok(match escaped {
            Some(c @ (b'"' | b'\\' | b'/')) => char::from(c),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.code_point(begin),
            _ => return Err(JsonError::Wanted { at: begin, wanted: "an escape that JSON knows" }),
        })
    }

    fn code_point(&mut self, begin: usize) -> Result<char, JsonError> {
        let half = || JsonError::Surrogate { at: begin };
        let first = self.hex(begin)?;
        let code = match first {
            0xd800..=0xdbff => {
                if !(self.take(b'\\') && self.take(b'u')) {
                    return Err(half());
                }
                let second = self.hex(begin)?.checked_sub(0xdc00).filter(|low| *low < 0x400);
                0x1_0000 + ((first - 0xd800) << 10) + second.ok_or_else(half)?
            }
            code => code,
        };
        char::from_u32(code).ok_or_else(half)
    }

    fn hex(&mut self, begin: usize) -> Result<u32, JsonError> {
        let digits = self
            .text
            .as_bytes()
            .get(self.at..self.at + 4)
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let wanted = JsonError::Wanted { at: begin, wanted: "`\\u` with four hexadecimal digits" };
        let digits = digits.ok_or(wanted)?;
        self.at += 4;
        Ok(digits.iter().fold(0, |code, digit| code * 16 + char::from(*digit).to_digit(16).unwrap_or(0)))
    }
}
