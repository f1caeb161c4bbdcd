//! Who may read what the ops port tells of a process.

use std::path::{Path, PathBuf};

use axum::http::{HeaderMap, header};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use crate::own_process::read_secret;

/// The fewest characters of a token: what is shorter is guessed.
const TOKEN_BYTES_MIN: usize = 16;
/// The most characters of a token.
const TOKEN_BYTES_MAX: usize = 4096;

/// Condition for reading `/metrics`, `/info` and the details of `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpsAccess {
    /// Everyone who reaches the listener: a socket file that only its owner opens.
    Everyone,
    /// Everyone who shows the token in this file. It is read for each request, so that it can be exchanged.
    Token(PathBuf),
    /// No one.
    NoOne,
}

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// It cannot be read, or others can read or change it.
    #[error("the token of the ops port cannot be read from {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is shorter or longer than a token.
    #[error(
        "{} has to hold a token of {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} bytes: `openssl rand -hex 32` makes one",
        path.display()
    )]
    Length {
        /// The file.
        path: PathBuf,
    },
}

impl OpsAccess {
    /// Checks that the token can be read, where there is one.
    ///
    /// # Errors
    /// [`TokenFileError`].
    pub fn check(&self) -> Result<(), TokenFileError> {
        match self {
            Self::Token(path) => token(path).map(drop),
            Self::Everyone | Self::NoOne => Ok(()),
        }
    }

    /// Whether a request with these headers may read everything.
    pub(super) async fn allows(&self, headers: &HeaderMap) -> bool {
        let path = match self {
            Self::Everyone => return true,
            Self::NoOne => return false,
            Self::Token(path) => path.clone(),
        };
        let Some(shown) = bearer(headers) else { return false };
        match tokio::task::spawn_blocking(move || token(&path)).await {
            // Its length may be told by the time that this takes; nothing else is.
            Ok(Ok(token)) => bool::from(token.as_bytes().ct_eq(shown.as_bytes())),
            Ok(Err(error)) => {
                tracing::warn!("a request to the ops port is refused: {}", crate::error_chain(&error));
                false
            }
            Err(_) => false,
        }
    }
}

/// The token that a request shows (RFC 6750, 2.1).
fn bearer(headers: &HeaderMap) -> Option<Zeroizing<String>> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| Zeroizing::new(token.trim().to_owned()))
}

fn token(path: &Path) -> Result<Zeroizing<String>, TokenFileError> {
    let text =
        read_secret(path).map_err(|source| TokenFileError::Unreadable { path: path.to_owned(), source })?;
    let good = (TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&text.len());
    good.then_some(text).ok_or_else(|| TokenFileError::Length { path: path.to_owned() })
}
