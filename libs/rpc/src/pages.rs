//! Pages: how many, and from where on. A token is bound to what it was made for.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use model::{Violations, limits};
use sha2::{Digest, Sha256};

/// The form of the tokens.
const VERSION: u8 = 2;
/// Bytes of the seal.
const SEAL_BYTES: usize = 16;

/// Page that a caller asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// How many entries at most, from 1 on.
    pub size: usize,
    /// A place with its seal; nothing for the first page.
    token: Option<Vec<u8>>,
}

impl PageRequest {
    /// Parses the fields of a request; 0 is the default size. Violations are noted, except for a token that was made for
    /// something else: only [`PageRequest::cursor`] knows what the token is for, and checks that.
    pub fn parse(size: u32, token: &str, violations: &mut Violations) -> Self {
        if size > limits::PAGE_SIZE_MAX {
            let max = limits::PAGE_SIZE_MAX;
            violations.add("page_size", format!("a page has at most {max} entries, not {size}"));
        }
        let token = if token.is_empty() { None } else { Some(token) };
        let token = token.and_then(|token| violations.take("page_token", unwrapped(token).ok_or(FOREIGN)));
        Self { size: if size == 0 { limits::PAGE_SIZE_DEFAULT } else { size } as usize, token }
    }

    /// Opens the token: where to go on; nothing for the first page.
    ///
    /// # Errors
    /// The token was made for another caller or filter, or by another server.
    pub fn cursor(
        &self,
        secret: &str,
        of: impl fmt::Debug + Copy,
        filter: &str,
    ) -> Result<Option<u64>, Violations> {
        let Some(place) = self.open(secret, of, filter)? else { return Ok(None) };
        let cursor: [u8; 8] = place.try_into().map_err(|_| refused())?;
        Ok(Some(u64::from_be_bytes(cursor)))
    }

    /// Makes the token with which to go on from `cursor`; empty without one.
    #[must_use]
    pub fn token(
        &self,
        secret: &str,
        of: impl fmt::Debug + Copy,
        filter: &str,
        cursor: Option<u64>,
    ) -> String {
        cursor.map(|cursor| sealed(secret, of, filter, &cursor.to_be_bytes())).unwrap_or_default()
    }

    /// Opens the token of a list whose places are texts, as [`PageRequest::cursor`] does.
    ///
    /// # Errors
    /// As [`PageRequest::cursor`].
    pub fn place(
        &self,
        secret: &str,
        of: impl fmt::Debug + Copy,
        filter: &str,
    ) -> Result<Option<String>, Violations> {
        let Some(place) = self.open(secret, of, filter)? else { return Ok(None) };
        Ok(Some(String::from_utf8(place).map_err(|_| refused())?))
    }

    /// Makes the token of a list whose places are texts, as [`PageRequest::token`] does.
    #[must_use]
    pub fn token_at(
        &self,
        secret: &str,
        of: impl fmt::Debug + Copy,
        filter: &str,
        place: Option<&str>,
    ) -> String {
        place.map(|place| sealed(secret, of, filter, place.as_bytes())).unwrap_or_default()
    }

    fn open(
        &self,
        secret: &str,
        of: impl fmt::Debug + Copy,
        filter: &str,
    ) -> Result<Option<Vec<u8>>, Violations> {
        let Some(token) = &self.token else { return Ok(None) };
        let (place, found) = token.split_last_chunk::<SEAL_BYTES>().ok_or_else(refused)?;
        if *found != seal(secret, of, filter, place) {
            return Err(refused());
        }
        Ok(Some(place.to_vec()))
    }
}

/// Why a token is refused that was not made here, or for something else.
const FOREIGN: &str = "the token is not one that was given for this caller and filter";

fn refused() -> Violations {
    let mut violations = Violations::new();
    violations.add("page_token", FOREIGN);
    violations
}

/// A place and its seal, when the token has the form of ours.
fn unwrapped(token: &str) -> Option<Vec<u8>> {
    let mut bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
    if bytes.len() <= SEAL_BYTES || bytes.remove(0) != VERSION {
        return None;
    }
    Some(bytes)
}

fn sealed(secret: &str, of: impl fmt::Debug + Copy, filter: &str, place: &[u8]) -> String {
    let mut bytes = vec![VERSION];
    bytes.extend(place);
    bytes.extend(seal(secret, of, filter, place));
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Binds a cursor to what it is for. It protects callers from mixing tokens up; permission is checked on
/// every page anyway.
fn seal(secret: &str, of: impl fmt::Debug + Copy, filter: &str, place: &[u8]) -> [u8; SEAL_BYTES] {
    let place = hex::encode(place);
    let text = format!("{secret} {VERSION} {of:?} {place} {filter} {secret}");
    let digest = Sha256::digest(text.as_bytes());
    let mut seal = [0; SEAL_BYTES];
    seal.copy_from_slice(&digest[..SEAL_BYTES]);
    seal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum PageOf {
        Flows,
        Nodes,
    }

    #[test]
    fn a_token_is_bound_to_its_filter() {
        let parse = |size, token: &str| {
            let mut violations = Violations::new();
            let page = PageRequest::parse(size, token, &mut violations);
            violations.into_result(Some(page))
        };
        let first = parse(0, "").expect("the default");
        assert_eq!((first.size, first.cursor("s", PageOf::Flows, "a").expect("no token")), (50, None));
        let token = first.token("s", PageOf::Flows, "a", Some(7));
        let next = parse(10, &token).expect("a size");
        assert_eq!(next.cursor("s", PageOf::Flows, "a").expect("its own"), Some(7));
        for (secret, of, filter) in
            [("t", PageOf::Flows, "a"), ("s", PageOf::Nodes, "a"), ("s", PageOf::Flows, "b")]
        {
            assert!(next.cursor(secret, of, filter).is_err(), "{secret} {of:?} {filter}");
        }
        for bad in ["x", "AAAA", "====", &token[1..]] {
            let found = parse(1001, bad).expect_err("both are wrong");
            let fields: Vec<_> = found.as_slice().iter().map(|violation| violation.field.as_str()).collect();
            assert_eq!(fields, ["page_size", "page_token"], "{bad}");
        }
    }
}
