//! Values of secrets, by their names: read when they are used, and wiped afterwards.
//!
//! A manifest says `secret:pay-token`; the value is in a file, or in the environment. It is read at each use, so a new value takes
//! effect with the next call.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use model::TenantId;
use service::read_secret;
use workflow::provider::SecretName;
use zeroize::{Zeroize as _, Zeroizing};

/// Prefix of the environment variables that hold secrets.
const VARIABLE_PREFIX: &str = "MYCORA_SECRET_";

/// Where secrets are looked for.
#[derive(Debug, Clone)]
pub struct Secrets(SagaSecretSource);

#[derive(Debug, Clone)]
enum SagaSecretSource {
    Directory(PathBuf),
    Environment,
}

/// Value of a secret. Wiped on drop, and never shown.
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Returns the value.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A secret could not be read. Names the secret and where it was looked for, never its value.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// No file of a directory has the secret.
    #[error("the secret `{name}` is not in {}", listed(places))]
    NoFile {
        /// The secret.
        name: String,
        /// Missing files, in the order in which they were tried.
        places: Vec<PathBuf>,
    },
    /// The file of a secret cannot be used.
    #[error("the secret `{name}` cannot be read from {}", path.display())]
    Unreadable {
        /// The secret.
        name: String,
        /// File of the secret.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// The environment does not have the secret.
    #[error("the secret `{name}` is not in the environment variable {variable}")]
    NoVariable {
        /// The secret.
        name: String,
        /// Variable of the secret.
        variable: String,
    },
    /// The value is empty, or not usable text.
    #[error("the secret `{name}` {what}")]
    Unusable {
        /// The secret.
        name: String,
        /// Fault of its value.
        what: &'static str,
    },
}

fn listed(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" or ")
}

impl Secrets {
    /// Secrets in files: `DIR/<tenant>/<name>`, and where there is none `DIR/<name>`.
    #[must_use]
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self(SagaSecretSource::Directory(directory.into()))
    }

    /// Secrets in environment variables: `MYCORA_SECRET_PAY_TOKEN` is `secret:pay-token`, for every tenant.
    #[must_use]
    pub const fn in_environment() -> Self {
        Self(SagaSecretSource::Environment)
    }

    /// Reads a secret as a tenant has it.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn read(&self, tenant: &TenantId, name: &SecretName) -> Result<Secret, SecretError> {
        let secret = match &self.0 {
            SagaSecretSource::Directory(directory) => read_file(directory, tenant, name)?,
            SagaSecretSource::Environment => read_variable(name, |variable| std::env::var_os(variable))?,
        };
        if secret.0.is_empty() {
            return Err(SecretError::Unusable { name: name.to_string(), what: "is empty" });
        }
        Ok(secret)
    }
}

/// Reads a secret from the first of its files. A file that exists and cannot be used is an error: the value of the next file may be
/// for other tenants.
fn read_file(directory: &Path, tenant: &TenantId, name: &SecretName) -> Result<Secret, SecretError> {
    // Both names are single path components: their types allow nothing else.
    let own = (!tenant.is_single()).then(|| directory.join(tenant.as_str()).join(name.as_str()));
    let mut places = Vec::new();
    for path in own.into_iter().chain([directory.join(name.as_str())]) {
        match read_secret(&path) {
            Ok(value) => return Ok(Secret(value)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => places.push(path),
            Err(cause) => return Err(SecretError::Unreadable { name: name.to_string(), path, cause }),
        }
    }
    Err(SecretError::NoFile { name: name.to_string(), places })
}

fn read_variable(
    name: &SecretName,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Secret, SecretError> {
    let variable = format!("{VARIABLE_PREFIX}{}", name.as_str().to_ascii_uppercase().replace('-', "_"));
    let Some(value) = environment(&variable) else {
        return Err(SecretError::NoVariable { name: name.to_string(), variable });
    };
    value.into_string().map(|value| Secret(Zeroizing::new(value))).map_err(|value| {
        value.into_encoded_bytes().zeroize();
        SecretError::Unusable { name: name.to_string(), what: "is no text in UTF-8" }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_named_after_secrets() {
        let name = |text: &str| SecretName::read(text).expect("a name");
        let environment = |variable: &str| (variable == "MYCORA_SECRET_PAY_TOKEN_2").then(|| "hush".into());
        let found = read_variable(&name("secret:pay-token_2"), environment).expect("it is there");
        assert_eq!(found.expose(), "hush");
        let missing = read_variable(&name("secret:other"), environment).expect_err("it is not there");
        assert_eq!(
            missing.to_string(),
            "the secret `secret:other` is not in the environment variable MYCORA_SECRET_OTHER"
        );
    }

    #[test]
    fn what_is_no_text_is_not_shown() {
        use std::os::unix::ffi::OsStringExt as _;

        let name = SecretName::read("secret:key").expect("a name");
        let error = read_variable(&name, |_| Some(OsString::from_vec(b"hush\xff".to_vec())));
        let error = error.expect_err("it is no text");
        assert_eq!(error.to_string(), "the secret `secret:key` is no text in UTF-8");
        assert!(!format!("{error:?}").contains("hush"));
    }
}
