//! The keys of actors: registering one, making new ones.

use std::path::PathBuf;

use clap::Args;
use identity::{SigningKey, VerifyingKey};
use model::Address;
use proto::v1;
use rpc::RetryAdvice;
use uuid::Uuid;

use crate::command::{CliSession, values};
use crate::failure::{ApiCallError, CliError, error_chain};
use crate::output::{self, json, objects};

pub(super) const REGISTER_HELP: &str = "\
For the bootstrap identity only.

Examples:
  mycora actor register --new-key actor-2.ed25519 --as admin
  mycora actor register --pubkey 7d4f… --id 5 --at grpc://site-b:7705 --as admin";

/// Which key.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct ActorKeyFlags {
    /// The public key: 64 hex digits
    #[arg(long, value_name = "HEX")]
    pub pubkey: Option<VerifyingKey>,
    /// Make a key, and write it into this file, which must not be there yet
    #[arg(long, value_name = "FILE")]
    pub new_key: Option<PathBuf>,
}

/// Arguments of `actor register`.
#[derive(Debug, Args)]
pub struct ActorRegisterArgs {
    /// Which key it has.
    #[command(flatten)]
    pub key: ActorKeyFlags,
    /// The actor's number [default: the coordinator chooses]
    #[arg(long, value_name = "ID", value_parser = values::id)]
    pub id: Option<u32>,
    /// Delivery address of its messages; may be repeated, and they are tried in this order [default: here]
    #[arg(long = "at", value_name = "ADDRESS")]
    pub addresses: Vec<Address>,
}

/// A public key to register, and the file that was made for it.
struct RegistrationKey {
    pubkey: String,
    made: Option<PathBuf>,
}

impl RegistrationKey {
    /// Makes the key first: one that is registered and nowhere kept would lock its actor out.
    fn of(args: &ActorKeyFlags) -> Result<Self, CliError> {
        match (&args.pubkey, &args.new_key) {
            (Some(key), _) => Ok(Self { pubkey: key.to_string(), made: None }),
            (None, Some(path)) => {
                let key = SigningKey::generate();
                key.write(path).map_err(|error| CliError::Invalid(error_chain(&error)))?;
                Ok(Self { pubkey: key.verifying_key().to_string(), made: Some(path.clone()) })
            }
            (None, None) => Err(CliError::Invalid("give --pubkey or --new-key".to_owned())),
        }
    }

    /// Removes the file of a key that was refused, and keeps it where the coordinator may have the key all the same.
    fn refused(self, error: ApiCallError) -> CliError {
        let unknown = matches!(error.retry, RetryAdvice::Again { .. });
        let failure = CliError::from(error);
        let Some(path) = self.made else { return failure };
        if !unknown {
            // Never used; only the first failure is worth reporting.
            let _ = std::fs::remove_file(path);
            return failure;
        }
        output::note(&format!(
            "it is unknown whether the coordinator accepted the key in {}; retry with --pubkey {}",
            path.display(),
            self.pubkey
        ));
        failure
    }
}

pub(super) async fn register(session: &CliSession, args: &ActorRegisterArgs) -> Result<(), CliError> {
    let key = RegistrationKey::of(&args.key)?;
    let request = v1::RegisterActorRequest {
        request_id: Uuid::new_v4().to_string(),
        id: args.id.unwrap_or_default(),
        pubkey: key.pubkey.clone(),
        address: args.addresses.iter().map(ToString::to_string).collect(),
    };
    let answer = match session.clients.register_actor(&request).await {
        Ok(answer) => answer,
        Err(error) => return Err(key.refused(error)),
    };
    let text = || objects::actor(&answer.actor.clone().unwrap_or_default());
    output::answer(session.global.output, || json::of(&answer), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_refused_leaves_no_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.ed25519");
        let args = ActorKeyFlags { pubkey: None, new_key: Some(path.clone()) };
        let key = RegistrationKey::of(&args).expect("made");
        assert_eq!(SigningKey::load(&path).expect("a key").verifying_key().to_string(), key.pubkey);
        assert!(RegistrationKey::of(&args).is_err(), "no key is overwritten");
        drop(key.refused(ApiCallError::from(tonic::Status::unavailable("nobody answers"))));
        assert!(path.exists(), "it may be registered");

        std::fs::remove_file(&path).expect("removed");
        let key = RegistrationKey::of(&args).expect("made");
        drop(key.refused(ApiCallError::from(tonic::Status::permission_denied("actor 1 may not"))));
        assert!(!path.exists());
    }
}
