//! The secrets that plain supervisors require: files, read when they are needed, and never sent to anyone else.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use bytes::Bytes;
use identity::exposure;
use model::ContextId;
use serde_json::value::{RawValue, to_raw_value};
use zeroize::Zeroizing;

/// A secret's length, at most.
pub const SECRET_BYTES_MAX: usize = 4096;
/// A name's length, at most.
const NAME_BYTES_MAX: usize = 64;
/// The parameter that carries the secret.
const PARAMETER: &str = "secret";
/// The parameter that names the context, in requests that have one.
const CONTEXT: &str = "context_id";

/// A directory with a file for each secret. A context's own subdirectory, named by the context's number, takes precedence: its
/// secrets are for records of that context alone; the secrets beside it are for records of all contexts.
#[derive(Debug, Clone, Default)]
pub struct SupervisorSecrets(Option<PathBuf>);

/// Secret of a plain supervisor. It is never printed, and wiped when it is dropped.
pub struct SupervisorSecret(Zeroizing<String>);

impl fmt::Debug for SupervisorSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SupervisorSecret")
    }
}

/// Why a secret cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the secret `{name}` cannot be read: {why}")]
pub struct SupervisorSecretError {
    name: String,
    why: String,
}

impl SupervisorSecrets {
    /// Reads secrets from a directory; there are none without one.
    #[must_use]
    pub const fn new(dir: Option<PathBuf>) -> Self {
        Self(dir)
    }

    /// Reads the secret that a record of this context names.
    ///
    /// # Errors
    /// [`SupervisorSecretError`].
    pub fn read(&self, context: ContextId, name: &str) -> Result<SupervisorSecret, SupervisorSecretError> {
        let refused = |why: &dyn fmt::Display| SupervisorSecretError {
            name: name.chars().take(NAME_BYTES_MAX).collect(),
            why: why.to_string(),
        };
        let good = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(good) {
            return Err(refused(&"its name is none"));
        }
        let dir = self.0.as_ref().ok_or_else(|| refused(&"this gateway has no directory of secrets"))?;
        let own = dir.join(context.to_string()).join(name);
        // Anyone who may change a directory on the path could replace the secret.
        let open = |path: PathBuf| {
            exposure::check_trusted(&path).map_err(io::Error::from).and_then(|()| File::open(path))
        };
        let file = match open(own) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => open(dir.join(name)),
            other => other,
        };
        let file = file.map_err(|error| refused(&error))?;
        let about = file.metadata().map_err(|error| refused(&error))?;
        if !about.is_file() {
            return Err(refused(&"it is no file"));
        }
        if about.permissions().mode() & 0o007 != 0 {
            return Err(refused(&"its file may be read or changed by others: restrict its permissions"));
        }
        // Allocated at full size: a buffer left behind by growth would not be wiped.
        let mut text = Zeroizing::new(String::with_capacity(SECRET_BYTES_MAX + 1));
        let read = file.take(SECRET_BYTES_MAX as u64 + 1).read_to_string(&mut text);
        read.map_err(|error| refused(&error))?;
        let secret = text.trim_end_matches(['\r', '\n']);
        if secret.is_empty() || text.len() > SECRET_BYTES_MAX {
            return Err(refused(&format_args!("its file has to hold 1 to {SECRET_BYTES_MAX} bytes")));
        }
        Ok(SupervisorSecret(Zeroizing::new(secret.to_owned())))
    }
}

/// Members of a message of JSON-RPC, or parameters.
type RawJsonObject = BTreeMap<String, Box<RawValue>>;

/// Why a secret cannot go with a payload.
#[derive(Debug, thiserror::Error)]
pub enum SecretInsertError {
    /// The payload is no message, or its parameters have no names.
    #[error("the parameters of a plain request must be an object")]
    NotNamed(#[source] serde_json::Error),
    /// The secret is missing.
    #[error(transparent)]
    Missing(#[from] SupervisorSecretError),
}

/// Adds a secret to the parameters of each request of a payload: the secret that `of` returns for the context that the request
/// names, if it names one. Answers stay as they are.
///
/// # Errors
/// [`SecretInsertError`].
pub fn insert_secret(
    payload: &[u8],
    of: impl Fn(Option<ContextId>) -> Result<Option<SupervisorSecret>, SupervisorSecretError>,
) -> Result<Bytes, SecretInsertError> {
    let batch = payload.trim_ascii_start().starts_with(b"[");
    let written = if batch {
        let mut members: Vec<RawJsonObject> =
            serde_json::from_slice(payload).map_err(SecretInsertError::NotNamed)?;
        members.iter_mut().try_for_each(|member| put(member, &of))?;
        serde_json::to_vec(&members)
    } else {
        let mut member: RawJsonObject =
            serde_json::from_slice(payload).map_err(SecretInsertError::NotNamed)?;
        put(&mut member, &of)?;
        serde_json::to_vec(&member)
    };
    written.map(Bytes::from).map_err(SecretInsertError::NotNamed)
}

fn put(
    member: &mut RawJsonObject,
    of: &impl Fn(Option<ContextId>) -> Result<Option<SupervisorSecret>, SupervisorSecretError>,
) -> Result<(), SecretInsertError> {
    if !member.contains_key("method") {
        return Ok(());
    }
    let mut params: RawJsonObject = match member.get("params") {
        Some(params) => serde_json::from_str(params.get()).map_err(SecretInsertError::NotNamed)?,
        None => RawJsonObject::new(),
    };
    let context = params.get(CONTEXT).map(|context| serde_json::from_str(context.get())).transpose();
    let Some(SupervisorSecret(secret)) = of(context.map_err(SecretInsertError::NotNamed)?)? else {
        return Ok(());
    };
    params.insert(PARAMETER.to_owned(), to_raw_value(secret.as_str()).map_err(SecretInsertError::NotNamed)?);
    member.insert("params".to_owned(), to_raw_value(&params).map_err(SecretInsertError::NotNamed)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, create_dir, set_permissions, write};

    #[test]
    fn a_secret_is_a_file_that_not_everybody_reads() {
        let dir = tempfile::tempdir().expect("a directory");
        let put = |name: &str, text: &str, mode| {
            let path = dir.path().join(name);
            write(&path, text).expect("written");
            set_permissions(&path, Permissions::from_mode(mode)).expect("changed");
        };
        create_dir(dir.path().join("2")).expect("a directory");
        for (name, text, mode) in
            [("a", "for all\n", 0o600), ("2/a", "for 2", 0o640), ("open", "x", 0o644), ("empty", "\n", 0o600)]
        {
            put(name, text, mode);
        }
        put("long", &"x".repeat(SECRET_BYTES_MAX + 1), 0o600);
        let secrets = SupervisorSecrets::new(Some(dir.path().to_owned()));
        let read = |context, name: &str| {
            secrets.read(ContextId(context), name).map(|secret| secret.0.as_str().to_owned())
        };
        assert_eq!(read(1, "a").as_deref(), Ok("for all"));
        assert_eq!(read(2, "a").as_deref(), Ok("for 2"), "its own goes first");
        for bad in ["", "2/a", "../a", "none", "open", "empty", "long", "2"] {
            let error = read(1, bad).expect_err("no secret").to_string();
            assert!(error.starts_with(&format!("the secret `{bad}` cannot be read: ")), "{error}");
        }
        assert!(SupervisorSecrets::default().read(ContextId(1), "a").is_err());
        let shown = format!("{:?}", secrets.read(ContextId(1), "a"));
        assert_eq!(shown, "Ok(SupervisorSecret)");
        // A secret that loses this bound is no longer wiped.
        fn is_wiped<T: zeroize::ZeroizeOnDrop>(_: &T) {}
        is_wiped(&secrets.read(ContextId(1), "a").expect("there is one").0);
        set_permissions(dir.path(), Permissions::from_mode(0o777)).expect("it is ours");
        let error = secrets.read(ContextId(1), "a").expect_err("anybody may exchange it").to_string();
        assert!(error.contains("chmod go-w"), "{error}");
    }

    #[test]
    fn it_goes_with_each_request_and_no_answer() {
        let of = |context| match context {
            None => Ok(Some(SupervisorSecret(Zeroizing::new("q\"".into())))),
            Some(ContextId(7)) => Ok(Some(SupervisorSecret(Zeroizing::new("of 7".into())))),
            Some(ContextId(8)) => SupervisorSecrets::default().read(ContextId(8), "a").map(Some),
            Some(_) => Ok(None),
        };
        let with = |json: &str| {
            let json = insert_secret(json.as_bytes(), of).expect("there is a place");
            serde_json::from_slice::<serde_json::Value>(&json).expect("JSON")
        };
        let single = with(r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"n":1.50,"secret":"x"}}"#);
        assert_eq!(single["params"], serde_json::json!({ "n": 1.50, "secret": "q\"" }));
        let batch = with(r#" [{"id":1,"method":"m"},{"id":2,"result":{}}]"#);
        assert_eq!(batch[0]["params"], serde_json::json!({ "secret": "q\"" }));
        assert_eq!(batch[1], serde_json::json!({ "id": 2, "result": {} }));
        assert!(insert_secret(br#"{"id":1,"method":"m","params":[1]}"#, of).is_err());
        let of_context = |context| with(&format!(r#"{{"method":"m","params":{{"context_id":{context}}}}}"#));
        assert_eq!(of_context(7)["params"]["secret"], "of 7");
        assert_eq!(of_context(9)["params"].get("secret"), None, "its own or none");
        let missing = insert_secret(br#"{"method":"m","params":{"context_id":8}}"#, of);
        assert!(matches!(missing, Err(SecretInsertError::Missing(_))));
    }
}
