//! Access to the ops port: who may read the state of a process, and who may send it commands.

use std::path::{Path, PathBuf};

use axum::http::{HeaderMap, header};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use crate::own_process::read_secret;

/// The fewest characters of a token or secret: shorter ones can be guessed.
const TOKEN_BYTES_MIN: usize = 16;
/// The most characters of a token or secret.
const TOKEN_BYTES_MAX: usize = 4096;

/// Condition for reading `/metrics`, `/info` and why a process is not ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpsAccess {
    /// Everyone who reaches the listener: a socket file that only its owner opens.
    Everyone,
    /// Everyone who shows the token in this file. It is read for each request, so that it can be exchanged.
    Token(PathBuf),
    /// No one.
    NoOne,
}

/// Why the file of a token or secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// The file cannot be read, or others can read or change it.
    #[error("the {what} cannot be read from {}", path.display())]
    Unreadable {
        /// Name of the secret in it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The content is shorter or longer than a token.
    #[error(
        "{} has to hold the {what}, {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} bytes: `openssl rand -hex 32` makes one",
        path.display()
    )]
    Length {
        /// Name of the secret in it.
        what: &'static str,
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
            Self::Token(path) => TokenFile::of_ops(path).check(),
            Self::Everyone | Self::NoOne => Ok(()),
        }
    }

    /// Returns true for a request whose headers allow it to read everything.
    pub(super) async fn allows(&self, headers: &HeaderMap) -> bool {
        match self {
            Self::Everyone => true,
            Self::NoOne => false,
            Self::Token(path) => TokenFile::of_ops(path).is_shown(headers).await,
        }
    }
}

/// File with a text that callers show as `Authorization: Bearer`. It is read for each request that shows one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenFile {
    what: &'static str,
    path: PathBuf,
}

impl TokenFile {
    fn of_ops(path: &Path) -> Self {
        Self { what: "token of the ops port", path: path.to_owned() }
    }

    /// Secret of the routes under `/admin`.
    pub(super) const fn of_admin(path: PathBuf) -> Self {
        Self { what: "secret of the admin routes", path }
    }

    /// Checks that it can be used now.
    ///
    /// # Errors
    /// [`TokenFileError`].
    pub(super) fn check(&self) -> Result<(), TokenFileError> {
        self.read().map(drop)
    }

    /// Returns true when a request with these headers shows the token in the file.
    pub(super) async fn is_shown(&self, headers: &HeaderMap) -> bool {
        let Some(shown) = bearer(headers) else { return false };
        let file = self.clone();
        match tokio::task::spawn_blocking(move || file.read()).await {
            // Constant time, except that the length may show in it.
            Ok(Ok(token)) => bool::from(token.as_bytes().ct_eq(shown.as_bytes())),
            Ok(Err(error)) => {
                tracing::warn!("a request to the ops port is refused: {}", crate::error_chain(&error));
                false
            }
            Err(_) => false,
        }
    }

    fn read(&self) -> Result<Zeroizing<String>, TokenFileError> {
        let (what, path) = (self.what, &self.path);
        let text = read_secret(path).map_err(|source| TokenFileError::Unreadable {
            what,
            path: path.clone(),
            source,
        })?;
        let good = (TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&text.len());
        good.then_some(text).ok_or_else(|| TokenFileError::Length { what, path: path.clone() })
    }
}

/// Returns the token that a request shows (RFC 6750, 2.1). A request with two different ones shows none: a proxy in front may have
/// checked either.
fn bearer(headers: &HeaderMap) -> Option<Zeroizing<String>> {
    let mut shown = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(only), None) = (shown.next(), shown.next()) else { return None };
    let (scheme, token) = only.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| Zeroizing::new(token.trim().to_owned()))
}
