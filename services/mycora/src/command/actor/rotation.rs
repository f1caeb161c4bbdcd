//! `mycora actor rotate-key`: another key, which the profile names from then on.
//!
//! The request is noted beside the new key before it is sent, so that the same command can continue after a lost answer:
//! no key comes into force that is not kept in a file.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use identity::{CertificateSummary, Identity, SigningKey, SigningKeyError, key_proof};
use model::{ActorId, Timestamp};
use proto::v1;
use serde::{Deserialize, Serialize};
use tonic::Code;
use uuid::Uuid;

use super::key::ActorKeyFlags;
use crate::clients::Clients;
use crate::command::{CliSession, profile_path, values};
use crate::failure::{ApiCallError, CliError, error_chain};
use crate::output::{self, json, objects};
use crate::profile::Profile;
use crate::profile::switch::switch_signing_key;

/// The longest time that old keys count beside a new one.
const OVERLAP_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// Suffix that names the note about a rotation under way, after the name of the key's file.
const NOTE: &str = ".rotation";

pub(super) const AFTER_HELP: &str = "\
For the actor itself and the bootstrap identity. An actor must prove that it holds its next key: --pubkey is for the bootstrap identity. Without --overlap the former keys become invalid at once: tokens, jobs and messages that they signed are refused.

With --new-key the profile is changed to the new file if its `signing_key` was a key of this actor; the former file stays. If the answer is lost, repeat the same command: FILE.rotation holds the unfinished request until then.

Examples:
  mycora actor rotate-key 2 --new-key actor-2.next.ed25519 --overlap 1h
  mycora actor rotate-key 2 --pubkey 7d4f… --revoke-certificates --as admin";

/// Arguments of `actor rotate-key`.
#[derive(Debug, Args)]
pub struct ActorRotateKeyArgs {
    /// The actor's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// The next key.
    #[command(flatten)]
    pub key: ActorKeyFlags,
    /// How long the former keys stay valid beside the new one, such as 1h; at most 30d
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = overlap)]
    pub overlap: Duration,
    /// Invalidate the client certificates that were issued until now
    #[arg(long)]
    pub revoke_certificates: bool,
}

fn overlap(text: &str) -> Result<Duration, String> {
    match yaml::duration(text) {
        Some(length) if length <= OVERLAP_MAX => Ok(length),
        Some(_) => Err("keys count beside each other for 30 days at most".to_owned()),
        None => Err("write it as 90s, 15m, 2h or 7d".to_owned()),
    }
}

/// A rotation request, identical in each try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct KeyRotationRequest {
    request_id: String,
    id: u32,
    expected_revision: u64,
    pubkey: String,
    overlap_secs: u32,
    revoke_certificates: bool,
}

impl KeyRotationRequest {
    /// Builds the request from the arguments and the actor's revision: no change made in between is lost.
    fn of(args: &ActorRotateKeyArgs, pubkey: String, now: &v1::Actor) -> Self {
        Self {
            request_id: Uuid::new_v4().to_string(),
            id: args.id,
            expected_revision: now.revision,
            pubkey,
            overlap_secs: secs(args.overlap),
            revoke_certificates: args.revoke_certificates,
        }
    }

    fn request(&self) -> v1::RotateActorKeyRequest {
        let Self { request_id, id, expected_revision, pubkey, overlap_secs, revoke_certificates } =
            self.clone();
        v1::RotateActorKeyRequest {
            request_id,
            id,
            expected_revision,
            pubkey,
            overlap_secs,
            revoke_certificates,
            key_proof: String::new(),
        }
    }
}

fn secs(length: Duration) -> u32 {
    u32::try_from(length.as_secs()).unwrap_or(u32::MAX)
}

/// A key in a file, and the request noted beside it.
struct KeyFile<'a> {
    path: &'a Path,
    note: PathBuf,
}

impl<'a> KeyFile<'a> {
    fn new(path: &'a Path) -> Self {
        let mut note = path.as_os_str().to_owned();
        note.push(NOTE);
        Self { path, note: note.into() }
    }

    /// Returns the request that an earlier run made with this file and the same arguments.
    fn begun(&self, args: &ActorRotateKeyArgs) -> Result<Option<KeyRotationRequest>, CliError> {
        if !self.path.exists() || !self.note.exists() {
            return Ok(None);
        }
        let refused = |why: &str| {
            CliError::Invalid(format!(
                "{}: an unfinished rotation is noted there, and {why}; repeat it with the same arguments, or name another \
                 file with --new-key",
                self.note.display()
            ))
        };
        let text = std::fs::read_to_string(&self.note).map_err(|error| refused(&error.to_string()))?;
        let rotation: KeyRotationRequest =
            serde_json::from_str(&text).map_err(|error| refused(&error.to_string()))?;
        let key = SigningKey::load(self.path).map_err(|error| CliError::Invalid(error_chain(&error)))?;
        if key.verifying_key().to_string() != rotation.pubkey {
            return Err(refused("it is for another key"));
        }
        let same = (rotation.id, rotation.overlap_secs, rotation.revoke_certificates)
            == (args.id, secs(args.overlap), args.revoke_certificates);
        if same { Ok(Some(rotation)) } else { Err(refused("its arguments differ from these")) }
    }

    /// Makes a key and notes the request: the note first, since a key without a note is taken for the user's own.
    fn begin(&self, args: &ActorRotateKeyArgs, now: &v1::Actor) -> Result<KeyRotationRequest, CliError> {
        if self.path.exists() {
            let error = SigningKeyError::Exists { path: self.path.to_owned() };
            return Err(CliError::Invalid(error_chain(&error)));
        }
        let key = SigningKey::generate();
        let rotation = KeyRotationRequest::of(args, key.verifying_key().to_string(), now);
        self.write_note(&rotation).map_err(|error| {
            CliError::Invalid(format!("{} cannot be written: {error}", self.note.display()))
        })?;
        if let Err(error) = key.write(self.path) {
            self.remove_note();
            return Err(CliError::Invalid(error_chain(&error)));
        }
        Ok(rotation)
    }

    /// Signs the proof that we hold the key: the coordinator demands it of an actor that rotates its own key.
    fn proof(&self, session: &CliSession, actor: u32) -> Result<String, CliError> {
        let key = SigningKey::load(self.path).map_err(|error| CliError::Invalid(error_chain(&error)))?;
        let trust_domain = session.profile().trust_domain()?;
        Ok(key_proof::sign(&key, &trust_domain, ActorId(actor), Timestamp::now()))
    }

    fn write_note(&self, rotation: &KeyRotationRequest) -> std::io::Result<()> {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&self.note)?;
        file.write_all(&serde_json::to_vec(rotation)?)?;
        file.sync_all()
    }

    fn remove_note(&self) {
        // One that stays is read again, and found done.
        let _ = std::fs::remove_file(&self.note);
    }

    /// A key that was refused is of no use.
    fn remove(&self) {
        let _ = std::fs::remove_file(self.path);
        self.remove_note();
    }

    /// Notes that the coordinator may have accepted the key; returns the error unchanged.
    fn kept(&self, error: ApiCallError) -> CliError {
        output::note(&format!(
            "it is unknown whether the coordinator accepted the key in {}; repeat the same command, which continues the \
             request noted in {}",
            self.path.display(),
            self.note.display()
        ));
        error.into()
    }
}

pub(super) async fn run(session: &CliSession, args: &ActorRotateKeyArgs) -> Result<(), CliError> {
    let (actor, notes) = match (&args.key.new_key, &args.key.pubkey) {
        (Some(path), _) => {
            let file = KeyFile::new(path);
            let actor = rotate(session, args, &file).await?;
            let notes = hand_over(session, args, &actor, Some(path));
            file.remove_note();
            (actor, notes)
        }
        (None, Some(pubkey)) => {
            let now = session.clients.get_actor(args.id).await?.actor.unwrap_or_default();
            let rotation = KeyRotationRequest::of(args, pubkey.to_string(), &now);
            let answer = session.clients.rotate_actor_key(&rotation.request()).await?;
            let actor = answer.actor.unwrap_or_default();
            let notes = hand_over(session, args, &actor, None);
            (actor, notes)
        }
        (None, None) => return Err(CliError::Invalid("give --pubkey or --new-key".to_owned())),
    };
    let answer = v1::RotateActorKeyResponse { actor: Some(actor) };
    let text = || objects::actor(&answer.actor.clone().unwrap_or_default());
    output::answer(session.global.output, || json::of(&answer), text)?;
    for note in notes {
        output::note(&note);
    }
    Ok(())
}

/// Gives the actor the key in the file, once, however many tries it takes.
async fn rotate(
    session: &CliSession,
    args: &ActorRotateKeyArgs,
    file: &KeyFile<'_>,
) -> Result<v1::Actor, CliError> {
    let rotation = match file.begun(args)? {
        None => {
            let now = session.clients.get_actor(args.id).await?.actor.unwrap_or_default();
            file.begin(args, &now)?
        }
        Some(rotation) => {
            let now = actor_now(session, &rotation, file).await.map_err(|error| file.kept(error))?;
            if now.pubkey == rotation.pubkey {
                return Ok(now);
            }
            rotation
        }
    };
    let request =
        v1::RotateActorKeyRequest { key_proof: file.proof(session, rotation.id)?, ..rotation.request() };
    let error = match session.clients.rotate_actor_key(&request).await {
        Ok(answer) => return Ok(answer.actor.unwrap_or_default()),
        Err(error) => error,
    };
    if error.view.code == Code::Unauthenticated {
        // Our credentials are no longer valid: an earlier try may have succeeded, and its answer got lost.
        return match as_new(session, &rotation, file).await {
            Some(now) if now.pubkey == rotation.pubkey => Ok(now),
            _ => Err(file.kept(error)),
        };
    }
    if !is_refusal(error.view.code) {
        return Err(file.kept(error));
    }
    file.remove();
    Err(error.into())
}

/// Returns true for codes that guarantee that nothing was done.
const fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::Aborted
    )
}

/// Reads the actor with the credentials in force: the former key or certificate, else the new key.
async fn actor_now(
    session: &CliSession,
    rotation: &KeyRotationRequest,
    file: &KeyFile<'_>,
) -> Result<v1::Actor, ApiCallError> {
    match session.clients.get_actor(rotation.id).await {
        Ok(answer) => Ok(answer.actor.unwrap_or_default()),
        Err(error) if error.view.code == Code::Unauthenticated => {
            as_new(session, rotation, file).await.ok_or(error)
        }
        Err(error) => Err(error),
    }
}

/// Reads the actor with the new key.
async fn as_new(
    session: &CliSession,
    rotation: &KeyRotationRequest,
    file: &KeyFile<'_>,
) -> Option<v1::Actor> {
    let profile = Profile {
        cert: None,
        key: None,
        signing_key: Some(file.path.to_owned()),
        actor: rotation.id,
        ..session.profile().clone()
    };
    let clients = Clients::new(&profile).ok()?;
    clients.get_actor(rotation.id).await.ok()?.actor
}

/// Lets the profile name the new key; gives what people have to know.
fn hand_over(
    session: &CliSession,
    args: &ActorRotateKeyArgs,
    actor: &v1::Actor,
    new: Option<&Path>,
) -> Vec<String> {
    let mut notes = Vec::new();
    let of_this_actor = |path: &Path| {
        let key = SigningKey::load(path).map(|key| key.verifying_key().to_string());
        key.is_ok_and(|key| actor.keys.iter().any(|known| known.key == key))
    };
    let new_file = new.map_or_else(|| "the new key's".to_owned(), |path| path.display().to_string());
    let outside = session.global.token_key.as_deref().filter(|path| of_this_actor(path));
    if let Some(former) = outside {
        let former = former.display();
        notes.push(format!("--token-key or MYCORA_TOKEN_KEY names {former}; from now on it is {new_file}"));
    }
    let Ok(path) = profile_path(&session.global) else { return notes };
    let name = session.global.profile.as_deref();
    let Ok(written) = Profile::load_as(&path, name) else { return notes };
    let former = written.signing_key.as_deref();
    let former = former.filter(|former| written.actor == args.id || of_this_actor(former));
    match (former, new) {
        (None, _) => {}
        (Some(former), Some(new)) if same_file(former, new) => {}
        (Some(former), Some(new)) => match switch_signing_key(&path, name, new) {
            Ok(()) if session.global.quiet => {}
            Ok(()) => notes.push(format!(
                "{} names {new_file} now; {} is not needed any more when its overlap is over",
                path.display(),
                former.display()
            )),
            Err(by_hand) => notes.push(format!("the profile still names the former key's file. {by_hand}")),
        },
        (Some(former), None) => notes.push(format!(
            "{}: `signing_key` names {}; from now on it is {new_file} file",
            path.display(),
            former.display()
        )),
    }
    if args.revoke_certificates && written.cert.as_deref().is_some_and(|cert| names(cert, args.id)) {
        notes.push(format!(
            "the profile's certificate does not count any more; make another with `mycora pki issue actor/{}`",
            args.id
        ));
    }
    notes
}

fn same_file(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// Returns true when the certificate is the actor's.
fn names(certificate: &Path, id: u32) -> bool {
    let summary = CertificateSummary::from_pem_file(certificate);
    summary
        .is_ok_and(|summary| summary.identity.is_some_and(|who| who.identity == Identity::Actor(ActorId(id))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct RotateKeyLine {
        #[command(flatten)]
        args: ActorRotateKeyArgs,
    }

    fn typed(file: &Path, more: &[&str]) -> ActorRotateKeyArgs {
        let file = file.to_str().expect("a plain path");
        RotateKeyLine::try_parse_from([&["rotate-key", "2", "--new-key", file], more].concat())
            .expect("good")
            .args
    }

    #[test]
    fn keys_overlap_for_a_month_at_most() {
        assert_eq!(overlap("0s"), Ok(Duration::ZERO));
        assert_eq!(overlap("30d"), Ok(OVERLAP_MAX));
        for wrong in ["", "31d", "1w", "60"] {
            assert!(overlap(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_was_begun_is_gone_on_with_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.ed25519");
        let file = KeyFile::new(&path);
        let args = typed(&path, &["--overlap", "1h"]);
        assert_eq!(file.begun(&args), Ok(None));
        let now = v1::Actor { revision: 9, ..Default::default() };
        let rotation = file.begin(&args, &now).expect("begun");
        assert_eq!((rotation.id, rotation.expected_revision, rotation.overlap_secs), (2, 9, 3600));
        assert_eq!(file.begun(&args), Ok(Some(rotation)), "the same request");
        let other = file.begun(&typed(&path, &[])).expect_err("another overlap").to_string();
        assert!(
            other.contains("a.ed25519.rotation: ") && other.contains("its arguments differ from these"),
            "{other}"
        );
        assert!(file.begin(&args, &now).is_err(), "a key is never overwritten");

        let another = dir.path().join("b.ed25519");
        SigningKey::generate().write(&another).expect("written");
        assert_eq!(KeyFile::new(&another).begun(&args), Ok(None), "a key without a note is somebody's own");
        std::fs::remove_file(&path).expect("there");
        std::fs::rename(&another, &path).expect("there");
        assert!(file.begun(&args).is_err_and(|failure| failure.to_string().contains("another key")));
        file.remove();
        assert_eq!(std::fs::read_dir(dir.path()).expect("there").count(), 0);
    }
}
